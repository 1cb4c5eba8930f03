"""The numbers of the two protocols, and the other readings of their papers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clove_ssl.config.finetuning import protocol
from clove_ssl.tasks.cityscapes.config import CityscapesConfig
from clove_ssl.tasks.lvis.config import LVISConfig


def test_lvis_is_read_out_down_to_tiny_scores() -> None:
    config = protocol("lvis-fpn", Path("RUN"), "random")
    assert isinstance(config.task, LVISConfig)
    read_out = config.task.detector.read_out
    assert (read_out.score_above, read_out.detections) == (1e-4, 300)
    assert config.task.repeat_threshold == 0.001
    assert (config.peak_lr, config.effective_batch) == (0.02, 16)
    assert config.task.train_sides == (640, 672, 704, 736, 768, 800)


def test_lvis_05_has_a_schedule_of_its_own_and_all_else_of_v1() -> None:
    config = protocol("lvis-v0.5-fpn", Path("RUN"), "random")
    assert (config.solver.iterations, config.solver.steps) == (90_000, (60_000, 80_000))
    whole = protocol("lvis-fpn", Path("RUN"), "random")
    assert replace(config, solver=whole.solver, task=whole.task) == whole
    assert config.task.detector == whole.task.detector  # type: ignore[attr-defined]
    assert not config.differences()


def test_the_learning_rate_of_the_paper_is_announced() -> None:
    config = replace(protocol("lvis-fpn", Path("RUN"), "random"), lr=0.001)
    assert config.differences() == [
        "The peak learning rate is 0.001 as asked; the protocol has 0.02."
    ]


def test_cityscapes_has_large_images_and_small_batches() -> None:
    config = protocol("cityscapes-fpn", Path("RUN"), "random")
    assert isinstance(config.task, CityscapesConfig)
    assert config.task.train_sides == (800, 832, 864, 896, 928, 960, 992, 1024)
    assert (config.task.test_side, config.task.longest) == (1024, 2048)
    assert (config.peak_lr, config.effective_batch) == (0.01, 8)
    assert not config.differences()


def test_batches_of_32_scale_the_learning_rate_unless_it_is_given() -> None:
    config = replace(protocol("cityscapes-fpn", Path("RUN"), "random"), batch_size=32)
    assert config.peak_lr == pytest.approx(0.04)
    paper = replace(config, lr=0.01)
    assert paper.peak_lr == 0.01
    assert paper.total_iterations == 24_000


@pytest.mark.parametrize("task", ["lvis-fpn", "cityscapes-fpn"])
def test_norms_are_fixed_and_not_measured_anew(task: str) -> None:
    config = protocol(task, Path("RUN"), "random")
    detector = config.task.detector  # type: ignore[attr-defined]
    assert (detector.backbone_norm, detector.neck_norm, detector.head_norm) == (
        "frozen",
        "none",
        "none",
    )
    assert detector.frozen_stages == 2
    assert (detector.box.convs, detector.box.fcs) == (0, 2)
    assert config.evaluation.precise_norm_batches == 0
