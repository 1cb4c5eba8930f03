"""What a finished run leaves for others: the backbone, its card, and the report."""

from __future__ import annotations

from collections.abc import Mapping

from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.exporting.cards import card_facts
from clove_ssl.methods.base import Method
from clove_ssl.report.page import write_report
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.training.plan import RunPlan
from clove_ssl.weights.export.model_card import write_model_card
from clove_ssl.weights.safetensors_file import save_backbone


def write_outcome(
    run: RunDirectory,
    config: PretrainConfig,
    plan: RunPlan,
    method: Method,
    *,
    figures: Mapping[str, float],
) -> None:
    """Write ``export/`` and ``report.html``."""
    backbone = method.export_backbone()
    metadata = {"method": config.method.name, "config_hash": files.fingerprint(config)}
    save_backbone(backbone, run.backbone, metadata)
    facts = card_facts(
        config, backbone, images=plan.images, steps=plan.total_steps, figures=figures
    )
    write_model_card(run.model_card, facts)
    write_report(run)
