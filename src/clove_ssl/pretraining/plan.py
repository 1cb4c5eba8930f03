"""The numbers that follow from a pre-training config, the data and the machine."""

from __future__ import annotations

from dataclasses import dataclass

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.schedules import Schedule, warmup_cosine
from clove_ssl.training.plan import LARGEST_MICRO_BATCH, RunPlan, fit_micro_batch


@dataclass(frozen=True)
class PretrainPlan(RunPlan):
    """A run whose learning rate falls like a cosine."""

    start_lr: float
    final_lr: float

    def lr(self) -> Schedule:
        """The learning rate as a function of the step."""
        return warmup_cosine(
            peak=self.peak_lr,
            total_steps=self.total_steps,
            warmup_steps=self.warmup_steps,
            start=self.start_lr,
            final=self.final_lr,
        )


def plan_run(
    config: PretrainConfig, *, images: int, processes: int, device_type: str
) -> PretrainPlan:
    """Derive a plan; refuse what does not divide."""
    share = config.share_per_process(processes)
    steps_per_epoch = images / config.batch_size
    peak = config.optimizer.peak_lr(config.batch_size)
    milestone = config.checkpoints.milestone_epochs
    return PretrainPlan(
        images=images,
        batch_size=config.batch_size,
        processes=processes,
        micro_batch=fit_micro_batch(config.micro_batch, share, LARGEST_MICRO_BATCH[device_type]),
        total_steps=config.total_steps(images),
        warmup_steps=round(config.optimizer.warmup_epochs * steps_per_epoch),
        peak_lr=peak,
        start_lr=peak * config.optimizer.warmup_start,
        final_lr=peak * config.optimizer.final_lr,
        checkpoint_every=max(
            config.checkpoints.min_steps, round(config.checkpoints.every_epochs * steps_per_epoch)
        ),
        milestone_every=milestone and max(1, round(milestone * steps_per_epoch)),
    )
