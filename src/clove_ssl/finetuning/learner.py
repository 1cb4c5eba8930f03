"""A downstream model as the training loop sees it, the batches it gets, what is captured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console
from clove_ssl.data.loading import end_workers
from clove_ssl.finetuning.plan import FinetunePlan
from clove_ssl.layers.captured import Recorder
from clove_ssl.methods.base import Learner, Progress, StepOutput
from clove_ssl.tasks.base import Reading, TaskModel
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.observer import WaitingTime
from clove_ssl.training.processes import Process


class TaskLearner(Learner):
    """Minimises the sum of a model's losses."""

    def __init__(self, model: TaskModel) -> None:
        super().__init__()
        self.model = model
        self.headline = model.headline

    def forward(self, batch: Any, progress: Progress) -> StepOutput:
        """The summed loss of a micro-batch, with its terms as metrics."""
        losses = self.model.losses(batch, step=progress.step)
        # Copies: what comes of a replay is written over by the next micro-batch.
        terms = torch.stack(list(losses.values()))
        return StepOutput(terms.sum(), dict(zip(losses, terms.detach().unbind(), strict=True)))


class TaskFeed:
    """Batches of a task on the device; files that cannot be read end the run."""

    def __init__(self, batches: Iterable[Any], process: Process, *, images: int) -> None:
        self._batches = iter(batches)
        self._device = process.device
        self._images = images
        self.waiting = WaitingTime(process.device)

    def next(self) -> Any:
        """The next micro-batch, on the device."""
        with self.waiting.counted():
            batch = next(self._batches)
        return batch.to(self._device, non_blocking=self._device.type == "cuda")

    def report_bad_files(self, console: Console) -> None:
        """A labelled image that cannot be read is an error at once."""

    def state(self) -> dict[str, Any]:
        """The size of the data, which decides the order of images."""
        return {"images": self._images}

    def close(self) -> None:
        """End the workers."""
        end_workers(self._batches)


def plan_reading(
    config: FinetuneConfig,
    plan: FinetunePlan,
    process: Process,
    *,
    start_step: int,
    workers: int,
) -> Reading:
    """The training batches of this process, from a step to the end."""
    return Reading(
        seed=config.seed,
        batch_size=plan.batch_size,
        micro_batch=plan.micro_batch,
        processes=process.world_size,
        rank=process.rank,
        start_step=start_step,
        stop_step=plan.total_steps,
        workers=workers,
        prefetch=config.data.prefetch,
        pin_memory=process.device.type == "cuda",
    )


def capture_part(model: TaskModel, loop: TrainingLoop) -> None:
    """Let the model capture a part of its steps, on a stream on which the loop works as well."""
    loop.recorder = Recorder(loop.process.device)
    several = loop.plan.micro_batches > 1
    model.capture(loop.recorder, accumulates=several, warn=loop.console.warn)
