"""The numbers that follow from a fine-tuning config, the data and the machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import share_per_process
from clove_ssl.schedules import Schedule, warmup_decay
from clove_ssl.training.plan import RunPlan, fit_micro_batch


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
