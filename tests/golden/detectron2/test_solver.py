"""Learning rates against those of Detectron2 0.6."""

from __future__ import annotations

from pathlib import Path

import pytest

from clove_ssl.config.finetuning import protocol
from clove_ssl.finetuning.plan import plan_finetuning
from clove_ssl.schedules import warmup_decay

pytestmark = pytest.mark.golden

FILE = "detectron2/10_solver.npz"
PROTOCOLS = {
    "voc-c4": "voc_24k",
    "coco-c4": "coco_90k",
    "coco-fpn": "coco_90k",
    "coco-keypoints": "coco_90k",
    "lvis-fpn": "lvis_180k",
    "cityscapes-fpn": "cityscapes_24k",
    "coco-densepose": "densepose_130k",
}


@pytest.mark.parametrize(
    "name", ["coco_90k", "voc_24k", "lvis_180k", "densepose_130k", "cityscapes_24k"]
)
def test_warm_up_and_decays_are_the_recorded_ones(golden, name: str) -> None:
    recorded = golden(FILE)
    base, _, warmup, factor = recorded[f"{name}_settings_base_max_warmup_factor"].tolist()
    lr = warmup_decay(
        peak=base,
        steps=recorded[f"{name}_steps"].tolist(),
        decay=0.1,
        warmup_steps=int(warmup),
        warmup_factor=factor,
    )
    iterations = recorded[f"{name}_iter"].tolist()
    assert [lr(step) for step in iterations] == pytest.approx(recorded[f"{name}_lr"], rel=1e-12)
    walk = recorded[f"{name}_walk_lr"]
    assert [lr(step) for step in range(len(walk))] == pytest.approx(walk, rel=1e-12)


@pytest.mark.parametrize("task", list(PROTOCOLS))
def test_protocols_have_the_recorded_schedules(golden, task: str) -> None:
    recorded, name = golden(FILE), PROTOCOLS[task]
    plan = plan_finetuning(protocol(task, Path("RUN"), "random"), images=100, processes=1)
    lr = plan.lr()
    iterations = recorded[f"{name}_iter"].tolist()
    assert [lr(step) for step in iterations] == pytest.approx(recorded[f"{name}_lr"], rel=1e-12)
    assert plan.total_steps == recorded[f"{name}_settings_base_max_warmup_factor"][1]
