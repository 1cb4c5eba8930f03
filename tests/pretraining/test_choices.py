"""What follows from a config, the data and the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.runs.tiny_runs import tiny_config

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.choice import Choice
from clove_ssl.config.pretraining import (
    BackboneConfig,
    CheckpointConfig,
    OptimizerConfig,
    PretrainConfig,
)
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.errors import UserError
from clove_ssl.methods.slotcon.config import SlotConConfig
from clove_ssl.pretraining.choices import Choices, decide, decide_sizes, plan_run
from clove_ssl.pretraining.run import pretrain, resume
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import read_starts
from clove_ssl.training.processes import Process

IMAGENET = 1_281_167
PAPER = PretrainConfig(out=Path("run"))


def test_the_published_run_has_the_published_numbers() -> None:
    plan = plan_run(PAPER, images=IMAGENET, processes=4, device_type="cuda")
    assert plan.peak_lr == 8.0
    assert plan.final_lr == pytest.approx(0.08)
    assert plan.micro_batch == 256
    assert plan.micro_batches == 2
    assert plan.total_steps == 200 * IMAGENET // 2048
    assert plan.warmup_steps == round(5 * IMAGENET / 2048)


def test_the_effective_batch_does_not_depend_on_the_number_of_processes() -> None:
    for processes in (1, 2, 8, 64):
        plan = plan_run(PAPER, images=IMAGENET, processes=processes, device_type="cuda")
        assert plan.micro_batch * plan.micro_batches * processes == 2048
        assert plan.peak_lr == 8.0


def test_an_uneven_batch_is_refused_with_two_that_fit() -> None:
    config = replace(PAPER, batch_size=100)
    with pytest.raises(UserError, match="--batch-size 96 or 104"):
        plan_run(config, images=1000, processes=8, device_type="cpu")


def test_an_uneven_micro_batch_is_refused_with_one_that_fits() -> None:
    config = replace(PAPER, batch_size=64, micro_batch=30)
    with pytest.raises(UserError, match="--micro-batch 32"):
        plan_run(config, images=1000, processes=1, device_type="cpu")


def test_fewer_images_than_a_batch_still_train() -> None:
    plan = plan_run(
        replace(PAPER, batch_size=64, epochs=10), images=20, processes=1, device_type="cpu"
    )
    assert plan.total_steps == 3
    assert plan.epoch(3) == pytest.approx(9.6)


def test_checkpoints_fall_on_epochs_and_on_the_end() -> None:
    config = replace(
        PAPER,
        batch_size=10,
        epochs=3,
        checkpoints=CheckpointConfig(every_epochs=1.0, min_steps=1, milestone_epochs=2),
    )
    plan = plan_run(config, images=105, processes=1, device_type="cpu")
    written = [step for step in range(1, plan.total_steps + 1) if plan.writes_checkpoint(step)]
    assert written == [10, 20, 21, 30, 31]
    assert [step for step in written if plan.is_milestone(step)] == [21]


def test_short_epochs_do_not_write_a_checkpoint_each() -> None:
    plan = plan_run(PAPER, images=1000, processes=1, device_type="cpu")
    assert plan.checkpoint_every == 100


def test_an_absolute_learning_rate_is_not_scaled() -> None:
    config = replace(PAPER, optimizer=OptimizerConfig(lr=0.3, scale_lr="none"))
    plan = plan_run(config, images=IMAGENET, processes=1, device_type="cuda")
    assert plan.peak_lr == 0.3


def on(device: str) -> Process:
    return Process(0, 1, 0, 1, torch.device(device))


OURS = "captured steps with our own kernels are faster"


@pytest.mark.parametrize(
    ("device", "steps", "asked", "decided"),
    [
        ("cpu", 5000, "auto", Choice(False, "on a CPU")),
        ("cpu", 1, "always", Choice(True, "as asked")),
        ("cuda", 50_000, "auto", Choice(False, OURS)),
        ("cuda", 5000, "never", Choice(False, "as asked")),
    ],
)
def test_what_can_be_captured_is_not_compiled(
    device: str, steps: int, asked: Any, decided: Choice[bool]
) -> None:
    config = replace(PAPER, steps=steps, compile=asked, precision="fp32", batch_size=256)
    assert choices_of(config, device).compilation == decided


@pytest.mark.parametrize(
    ("backbone", "steps", "decided"),
    [
        ("resnet18", 9_999, Choice(False, "only worth it in 10,000 steps or more")),
        ("resnet18", 10_000, Choice(True, "worth it in 10,000 steps or more")),
        ("regnet_y_400mf", 1_499, Choice(False, "only worth it in 1,500 steps or more")),
        ("regnet_y_400mf", 1_500, Choice(True, "worth it in 1,500 steps or more")),
    ],
)
def test_long_runs_that_cannot_be_captured_are_compiled(
    backbone: str, steps: int, decided: Choice[bool]
) -> None:
    config = replace(
        PAPER,
        steps=steps,
        backbone=BackboneConfig(name=backbone),
        capture="never",
        precision="fp32",
    )
    assert choices_of(config, "cuda").compilation == decided


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "every step runs the same kernels"),
        ({"capture": "never"}, "as asked"),
        ({"precision": "fp16"}, "fp16 rescales the loss in every step"),
        ({"method": SlotConConfig()}, "the number of common slots changes from step to step"),
    ],
)
def test_steps_are_captured_where_all_are_alike(changes: dict[str, Any], reason: str) -> None:
    config = replace(PAPER, batch_size=256, precision="fp32")
    found = choices_of(replace(config, **changes), "cuda").capture
    assert found == Choice(not changes, reason)


def test_slots_with_room_for_all_of_them_are_captured() -> None:
    config = replace(PAPER, batch_size=256, precision="fp32", method=SlotConConfig(slot_room="all"))
    assert choices_of(config, "cuda").capture == Choice(True, "every step runs the same kernels")


def test_a_capture_that_cannot_be_is_refused() -> None:
    config = replace(PAPER, capture="always", precision="fp32")
    with pytest.raises(UserError, match="on a CPU"):
        choices_of(config, "cpu")


def choices_of(config: PretrainConfig, device: str) -> Choices:
    if config.backbone.name == "resnet50":  # as good as any other ResNet, and larger
        config = replace(config, backbone=BackboneConfig(name="resnet18"))
    method = config.method.build(build_backbone(config.backbone))
    sizes = decide_sizes(config, on(device), images=10_000)
    return decide(config, on(device), sizes, method=method)


def test_rendering_on_a_gpu_that_is_not_there_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    config = tiny_config(tmp_path / "run")
    with pytest.raises(UserError, match="--data.render gpu needs a GPU"):
        pretrain(replace(config, data=replace(config.data, render="gpu")))
    assert not (tmp_path / "run").exists()


def test_every_start_writes_down_what_it_decided(tmp_path: Path) -> None:
    pretrain(tiny_config(tmp_path / "run", steps=2))
    resume(tmp_path / "run", ResumeChanges(micro_batch=4))
    first, second = read_starts(RunDirectory(tmp_path / "run"))
    assert first["choices"]["workers"] == {"value": 0, "reason": "as asked"}
    assert first["choices"]["precision"] == {"value": "fp32", "reason": "on a CPU"}
    assert first["choices"]["rendering"]["value"] == "in the workers"
    assert first["choices"]["plan"]["images"] == 20
    passes = [start["choices"]["plan"]["micro_batches"] for start in (first, second)]
    assert passes == [1, 2]
    assert second["step"] == 2
