"""Numbers that follow from a config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clove_ssl.config.pretraining import CheckpointConfig, OptimizerConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining.plan import plan_run

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
