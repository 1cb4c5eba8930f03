"""What a finished run leaves for others: the backbone, its card, and the report."""

from __future__ import annotations

from collections.abc import Mapping

from clove_ssl import __version__
from clove_ssl.backbones.build import Backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.engine.plan import RunPlan
from clove_ssl.export.model_card import ModelCardFacts, write_model_card
from clove_ssl.export.safetensors_file import save_backbone
from clove_ssl.methods.base import Method
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD
from clove_ssl.visual.report import write_report

HEALTH = ("loss", "cos_positive", "cos_negative", "feature_std", "effective_rank")


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
    write_model_card(run.model_card, _card_facts(config, plan, backbone, figures))
    write_report(run)


def _card_facts(
    config: PretrainConfig, plan: RunPlan, backbone: Backbone, figures: Mapping[str, float]
) -> ModelCardFacts:
    return ModelCardFacts(
        method=config.method.name,
        architecture=config.backbone.name,
        stage=backbone.stage,
        output_stride=config.backbone.output_stride,
        data=config.data.source,
        images=plan.images,
        images_seen=plan.total_steps * plan.batch_size,
        steps=plan.total_steps,
        config_hash=files.fingerprint(config),
        library_version=__version__,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        health={name: figures[name] for name in HEALTH if name in figures},
    )
