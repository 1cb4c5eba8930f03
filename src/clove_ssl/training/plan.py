"""The numbers that follow from a config, the data and the machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from clove_ssl.errors import UserError
from clove_ssl.schedules import Schedule

LARGEST_MICRO_BATCH = {"cuda": 256, "cpu": 32}


@dataclass(frozen=True)
class RunPlan(ABC):
    """What a run will do, step by step; subclasses know the learning rate."""

    images: int
    batch_size: int
    processes: int
    micro_batch: int
    total_steps: int
    warmup_steps: int
    peak_lr: float
    checkpoint_every: int
    milestone_every: int | None

    @property
    def micro_batches(self) -> int:
        """Forward passes per optimizer step of one process."""
        return self.batch_size // (self.processes * self.micro_batch)

    def epoch(self, step: int) -> float:
        """How often each image has been seen when ``step`` steps are done."""
        return step * self.batch_size / self.images

    @abstractmethod
    def lr(self) -> Schedule:
        """The learning rate as a function of the step."""

    def values(self) -> dict[str, Any]:
        """The numbers as they stand in ``provenance.json``."""
        return {**asdict(self), "micro_batches": self.micro_batches}

    def writes_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is due when ``step`` steps are done."""
        due = step % self.checkpoint_every == 0 or step == self.total_steps
        return due or self.is_milestone(step)

    def is_milestone(self, step: int) -> bool:
        """Whether that checkpoint is kept for good."""
        return self.milestone_every is not None and step % self.milestone_every == 0


def fit_micro_batch(asked: int | None, share: int, largest: int) -> int:
    """The images of one forward pass: what was asked for, or the most that fit and divide."""
    if asked is None:
        return next(size for size in range(min(share, largest), 0, -1) if share % size == 0)
    if asked < 1 or share % asked:
        fits = [size for size in range(1, share + 1) if share % size == 0]
        raise UserError(
            f"micro_batch={asked} does not divide the {share} images each process handles per "
            f"step. Try --micro-batch {min(fits, key=lambda size: abs(size - asked))}."
        )
    return asked
