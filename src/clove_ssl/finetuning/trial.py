"""Steps that nobody keeps: how large a batch may be on this machine, and how long things take."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.errors import UserError
from clove_ssl.finetuning.choices import choose_readers
from clove_ssl.tasks.base import Reading, TaskData, TaskModel
from clove_ssl.training.numerics import Precision
from clove_ssl.training.processes import Process, placed

LARGEST_BATCH = {"cuda": 16, "cpu": 4}
"""Images of a step and process; more gains no speed and leaves too few steps."""
IMAGES_PER_BATCH = 4
"""A batch is at most one in so many training images."""
NORM_BATCHES = 50
_MEMORY_SHARE = 0.8  # of a GPU, that a trial may take; the largest images may be yet to come
_BATCHES = {"cuda": 8, "cpu": 2}  # that are read to measure a step


@dataclass(frozen=True)
class Pace:
    """How long things take on this machine, in seconds."""

    step: float  # of all processes together
    evaluation: float  # of all test images, norms included


class Trial:
    """A copy of the model that takes steps which nobody keeps."""

    def __init__(
        self,
        config: FinetuneConfig,
        data: TaskData,
        backbone: Backbone,
        precision: Precision,
        process: Process,
    ) -> None:
        self._config, self._data, self._process = config, data, process
        self._precision = precision
        self._task = config.task.build()
        self._backbone = backbone

    def largest_batch(self) -> int:
        """Images of a step over all processes: the most that fit, halved until they do."""
        device, images = self._process.device, images_used(self._config, self._data)
        share = max(1, images // (IMAGES_PER_BATCH * self._process.world_size))
        batch = min(LARGEST_BATCH[device.type], 1 << (share.bit_length() - 1))
        batch = max(batch, min(2, images))
        # Losses are averaged over processes, so one of several must not fail alone.
        if device.type == "cuda" and self._process.world_size == 1:
            batch = self._halved_until_it_fits(batch)
        return min(self._process.gather(batch)) * self._process.world_size

    def _halved_until_it_fits(self, batch: int) -> int:
        while not self._fits(batch):
            if batch == 1:
                raise UserError(
                    "Not even one image fits into the memory of this GPU. Give smaller images "
                    "(--task.side), a smaller --architecture, or --device cpu."
                )
            batch //= 2
        return batch

    def pace(self, batch: int) -> Pace:
        """Measure steps and predictions."""
        count = _BATCHES[self._process.device.type]
        workers = choose_readers(self._config, self._process).value
        model = self._model()
        share = max(1, batch // self._process.world_size)
        reading = self._reading(share, count)
        batches, loading = _timed_list(self._task.training_batches(self._data, reading))
        step = self._mean_seconds(batches, lambda each: self._step(model, each))
        step += loading / len(batches) / max(1, workers)
        norms = self._config.evaluation.precise_norm_batches and norm_batches(
            images_used(self._config, self._data), batch
        )
        images = islice(self._task.test_batches(self._data, reading), count)
        tests, loading = _timed_list(images)
        model.eval()
        image = self._mean_seconds(tests, lambda each: self._predict(model, each))
        image += loading / len(tests) / max(1, workers)
        share_of_test = math.ceil(self._data.test_images / self._process.world_size)
        return Pace(step, share_of_test * image + norms * step / 2)

    def _fits(self, share: int) -> bool:
        """Whether forward and backward pass of the largest images leave room."""
        device = self._process.device
        torch.cuda.reset_peak_memory_stats(device)
        model: TaskModel | None = self._model()
        try:
            for batch in self._task.training_batches(self._data, self._reading(share, 3)):
                assert model is not None
                self._step(model, batch)
            free, _ = torch.cuda.mem_get_info(device)  # others may use this GPU, too
            ours = free + torch.cuda.memory_reserved(device)
            return torch.cuda.max_memory_allocated(device) < _MEMORY_SHARE * ours
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            model = None
            torch.cuda.empty_cache()

    def _model(self) -> TaskModel:
        model = self._task.build_model(
            copy.deepcopy(self._backbone), self._data, seed=self._config.seed
        )
        return placed(model, self._process.device).train()

    def _reading(self, share: int, steps: int) -> Reading:
        return Reading.alone(batch=share, steps=steps, seed=self._config.seed, prefetch=1)

    def _step(self, model: TaskModel, batch: Any) -> None:
        with self._precision.autocast():
            losses = model.losses(batch.to(self._process.device), step=0)
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        model.zero_grad(set_to_none=True)

    def _predict(self, model: TaskModel, batch: Any) -> None:
        with torch.no_grad(), self._precision.autocast():
            model.predict(batch.to(self._process.device))

    def _mean_seconds(self, batches: list[Any], work: Callable[[Any], None]) -> float:
        """Of a batch; a GPU sees all twice, as it plans its kernels for each size of images."""
        known, measured = batches[:1], batches[1:] or batches
        if self._process.device.type == "cuda":
            known = measured = batches
        for batch in known:
            work(batch)
        self._drain()
        start = time.perf_counter()
        for batch in measured:
            work(batch)
        self._drain()
        return (time.perf_counter() - start) / len(measured)

    def _drain(self) -> None:
        if self._process.device.type == "cuda":
            torch.cuda.synchronize(self._process.device)


def _timed_list(batches: Iterable[Any]) -> tuple[list[Any], float]:
    start = time.perf_counter()
    return list(batches), time.perf_counter() - start


def images_used(config: FinetuneConfig, data: TaskData) -> int:
    """Training images of a run, which may use a share of them."""
    return max(1, round(config.fraction * data.train_images))


def norm_batches(images: int, batch: int) -> int:
    """Batches that norm statistics are measured over: all images, or enough of them."""
    return min(NORM_BATCHES, math.ceil(images / batch))
