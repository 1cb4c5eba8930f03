"""Numbers of ``clove finetune`` with which a run cannot work are refused before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clove_ssl import cli
from clove_ssl.config.detection import BoxHeadConfig, MaskHeadConfig, ReadOutConfig
from clove_ssl.config.finetuning import EvaluationConfig, SolverConfig, protocol
from clove_ssl.registry import TASKS

COMMON = {
    "micro-batch": ("0", "-1"),
    "data.scenes-train": ("0",),
    "data.scenes-test": ("0",),
    "data.scenes-size": ("0",),
    "evaluation.pictures": ("-1",),
    "evaluation.precise-norm-batches": ("-1",),
    "solver.batch-size": ("0",),
    "solver.decay": ("-1", "2", "nan"),
    "solver.iterations": ("0",),
    "solver.lr": ("0", "nan", "inf"),
    "solver.momentum": ("-1", "1", "2", "nan"),
    "solver.steps": ("-1", "9 3"),
    "solver.warmup-factor": ("-1", "2", "nan"),
    "solver.warmup-iterations": ("-1",),
    "solver.weight-decay": ("-1", "nan", "inf"),
}
SEMANTIC = {
    "task.crop": ("0",),
    "task.head-dilation": ("0",),
    "task.head-width": ("0",),
    "task.scales": ("0 1", "2 1", "1 inf", "nan 1"),
    "task.test-longest": ("0",),
}
DETECTOR = {
    "task.detector.box.conv-width": ("0",),
    "task.detector.box.convs": ("-1",),
    "task.detector.box.fc-width": ("0",),
    "task.detector.box.fcs": ("-1",),
    "task.detector.box.foreground-share": ("-1", "0", "2", "nan"),
    "task.detector.box.loss-beta": ("-1", "nan", "inf"),
    "task.detector.box.regions-per-image": ("0",),
    "task.detector.frozen-stages": ("-1", "6"),
    "task.detector.keypoint.convs": ("-1",),
    "task.detector.keypoint.width": ("0",),
    "task.detector.mask.convs": ("-1",),
    "task.detector.mask.width": ("0",),
    "task.detector.proposals.anchor-ratios": ("", "0", "0.5 -1", "nan"),
    "task.detector.proposals.anchor-sizes": ("", "0", "32 -64", "inf"),
    "task.detector.proposals.anchors-per-image": ("0",),
    "task.detector.proposals.nms-overlap": ("-1", "2", "nan"),
    "task.detector.proposals.test-after-nms": ("0",),
    "task.detector.proposals.test-before-nms": ("0",),
    "task.detector.proposals.train-after-nms": ("0",),
    "task.detector.proposals.train-before-nms": ("-1",),
    "task.detector.pyramid-width": ("0",),
    "task.detector.read-out.detections": ("0", "-1"),
    "task.detector.read-out.nms-overlap": ("-1", "2", "nan"),
    "task.detector.read-out.score-above": ("-1", "2", "nan"),
    "task.longest": ("0",),
    "task.test-side": ("0",),
    "task.train-sides": ("", "0"),
}
SURFACE = {
    "task.surface-head.convs": ("-1",),
    "task.surface-head.decoder-width": ("0",),
    "task.surface-head.overlap-above": ("-1", "1", "nan"),
    "task.surface-head.part-weight": ("-1", "nan"),
    "task.surface-head.person-weight": ("-1", "inf"),
    "task.surface-head.pooled-side": ("0",),
    "task.surface-head.surface-images": ("0",),
    "task.surface-head.surface-weight": ("-1", "nan"),
    "task.surface-head.width": ("0",),
}
REFUSED = [
    (task, f"--{option}", value)
    for task, options in (
        ("voc-semantic", COMMON | SEMANTIC),
        ("voc-c4", DETECTOR),
        ("lvis-fpn", {"task.repeat-threshold": ("-1", "2", "nan")}),
        ("coco-densepose", SURFACE),
    )
    for option, values in options.items()
    for value in values
]


@pytest.mark.parametrize(("task", "option", "value"), REFUSED)
def test_numbers_that_cannot_work_are_refused(
    task: str, option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run = ["finetune", task, "--out", str(out), "--backbone", str(tmp_path / "nowhere")]
    assert cli.main([*run, option, *value.split()]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert option in told
    assert not out.exists()


@pytest.mark.parametrize("task", TASKS.names())
def test_protocols_are_within_the_limits(task: str) -> None:
    config = protocol(task, Path("RUN"), "random")
    assert replace(config, solver=replace(config.solver), task=replace(config.task)) == config


def test_values_at_the_limits_are_taken() -> None:
    SolverConfig(steps=(), decay=1, warmup_factor=1, warmup_iterations=0, weight_decay=0)
    SolverConfig(steps=(0, 5, 5), decay=0, warmup_factor=0, momentum=0)
    EvaluationConfig(precise_norm_batches=0, pictures=0)
    BoxHeadConfig(convs=0, fcs=0, foreground_share=1, loss_beta=0)
    MaskHeadConfig(convs=0)
    ReadOutConfig(score_above=0, nms_overlap=1, detections=1)
    ReadOutConfig(score_above=1, nms_overlap=0)
