"""A downstream model as the training loop sees it, and the batches it gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from clove_ssl.console import Console
from clove_ssl.data.loading import end_workers
from clove_ssl.methods.base import Learner, Progress, StepOutput
from clove_ssl.tasks.base import TaskModel
from clove_ssl.training.batches import WaitingTime
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
        total = torch.stack(list(losses.values())).sum()
        return StepOutput(total, {name: value.detach() for name, value in losses.items()})


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
