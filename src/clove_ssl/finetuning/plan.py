"""What a fine-tuning run will do, and what it needs at least.

The numbers follow from its config, the data and the machine; what cannot fit is refused with one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clove_ssl.config.finetuning import FinetuneConfig, LabelledDataConfig
from clove_ssl.config.pretraining import share_per_process
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.schedules import Schedule, warmup_decay
from clove_ssl.tasks.base import TaskModel
from clove_ssl.training.plan import (
    Needs,
    RunPlan,
    check_disk,
    check_memory,
    check_time,
    checkpoint_space,
    fit_micro_batch,
    weights_and_checkpoint,
)
from clove_ssl.training.processes import Process

KEPT_CHECKPOINTS = 2
_PIXELS_PER_BYTE = 20  # of JPEG files and masks of scenes, with much to spare


@dataclass(frozen=True)
class FinetunePlan(RunPlan):
    """A run whose learning rate falls in steps, with evaluations on the way."""

    decay_steps: tuple[int, ...]
    decay: float
    warmup_factor: float
    evaluate_every: int | None

    def lr(self) -> Schedule:
        """The learning rate as a function of the step."""
        return warmup_decay(
            peak=self.peak_lr,
            steps=self.decay_steps,
            decay=self.decay,
            warmup_steps=self.warmup_steps,
            warmup_factor=self.warmup_factor,
        )

    def evaluates(self, step: int) -> bool:
        """Whether the model is scored when ``step`` steps are done."""
        every = self.evaluate_every
        return step == self.total_steps or (every is not None and step > 0 and step % every == 0)

    def evaluations(self, step: int) -> Iterator[int]:
        """The steps from ``step`` on after which the model is scored."""
        if self.evaluate_every is not None:
            first = max(1, math.ceil(step / self.evaluate_every)) * self.evaluate_every
            yield from range(first, self.total_steps, self.evaluate_every)
        yield self.total_steps

    def writes_checkpoint(self, step: int) -> bool:
        """Also at every evaluation, so that an interrupted one can be repeated."""
        return super().writes_checkpoint(step) or self.evaluates(step)


def plan_finetuning(config: FinetuneConfig, *, images: int, processes: int) -> FinetunePlan:
    """Derive a plan; refuse what does not divide."""
    batch, solver = config.effective_batch, config.solver
    share = share_per_process(batch, processes)
    return FinetunePlan(
        images=images,
        batch_size=batch,
        processes=processes,
        micro_batch=fit_micro_batch(config.micro_batch, share, largest=share),
        total_steps=config.total_iterations,
        warmup_steps=config.warmup,
        peak_lr=config.peak_lr,
        checkpoint_every=config.checkpoint_every,
        milestone_every=None,
        decay_steps=tuple(config.scaled(step) for step in solver.steps),
        decay=solver.decay,
        warmup_factor=solver.warmup_factor,
        evaluate_every=config.evaluation.every,
    )


def check_room_for_scenes(data: LabelledDataConfig, folder: Path) -> None:
    """Refuse scenes that the disk cannot hold, unless they are there."""
    if not folder.is_dir():
        pixels = (data.scenes_train + data.scenes_test) * data.scenes_size**2
        lower = "--data.scenes-train, --data.scenes-test or --data.scenes-size"
        what = "The scenes of this run"
        check_disk(pixels // _PIXELS_PER_BYTE, folder, what=what, lower=lower)


def check_needs(
    config: FinetuneConfig,
    run: RunDirectory,
    plan: FinetunePlan,
    model: TaskModel,
    process: Process,
) -> None:
    """Refuse batches and checkpoints that cannot fit, and what would last for months."""
    images = plan.total_steps * plan.batch_size
    check_time(plan.total_steps, images, processes=process.world_size)
    sides = getattr(config.task, "train_sides", None) or (getattr(config.task, "crop", 1),)
    pixels = 3 * plan.micro_batch * min(sides) ** 2  # of at least a byte each
    weights, checkpoint = weights_and_checkpoint(model, states_per_weight=1)
    needs = Needs(weights, pixels, 0, checkpoint)
    lower = "--micro-batch, --batch-size or the sizes of the images"
    check_memory(needs, process.device, processes_here=process.local_world_size, lower=lower)
    space = checkpoint_space(checkpoint, run.checkpoints, keep=KEPT_CHECKPOINTS, milestones=0)
    what = "The checkpoints of this run"
    check_disk(space, run.path, what=what, lower="the sizes of its heads")
