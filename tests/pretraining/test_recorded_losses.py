"""Ten steps of tiny runs must give the recorded losses.

A refactoring that changes these numbers is not a refactoring. When a change
is meant, run this file with ``--update-recorded`` and say why in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders.runs.tiny_runs import NO_CHECKPOINTS, RESNET18, tiny_config, tiny_method

from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics

RECORDED = Path(__file__).parents[1] / "recorded" / "clove.json"
FIGURES = ("loss", "cos_positive", "positives_per_image_global", "gradient_norm")


def plain_attention() -> CLoVEConfig:
    method = tiny_method()
    return CLoVEConfig(
        **{**vars(method), "attention": AttentionConfig(kind="plain", heads=2)},
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"backbone": RESNET18},
    "accumulated": {"backbone": RESNET18, "micro_batch": 4},
    "plain attention": {"method": plain_attention()},
    "paper form": {"method": tiny_method(form="paper")},
    "l2": {"method": tiny_method(kind="l2")},
    "inter": {"method": tiny_method(negatives="inter", queue_size=24)},
    "inter-avg": {"method": tiny_method(negatives="inter-avg", queue_size=24)},
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_losses_are_the_recorded_ones(
    variant: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = tiny_config(
        tmp_path / "run",
        steps=10,
        checkpoints=NO_CHECKPOINTS,
        **VARIANTS[variant],
    )
    pretraining.pretrain(config)
    lines = read_metrics(RunDirectory(tmp_path / "run"))
    measured = {name: [line[name] for line in lines] for name in FIGURES}
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if request.config.getoption("--update-recorded"):
        RECORDED.parent.mkdir(exist_ok=True)
        RECORDED.write_text(json.dumps(recorded | {variant: measured}, indent=1) + "\n")
        return
    for name in FIGURES:
        assert measured[name] == pytest.approx(recorded[variant][name], rel=1e-5, abs=1e-3)
