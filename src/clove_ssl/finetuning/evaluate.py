"""From a model to files of predictions: norm statistics, test images of all processes, one file.

An evaluation leaves the model as it found it, so that a run that is evaluated on the way trains
like one that is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console
from clove_ssl.data.loading import ended
from clove_ssl.finetuning.finetuned import write_finetuned
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import Reading, Task, TaskData, TaskModel
from clove_ssl.tasks.precise_norm import estimate_statistics
from clove_ssl.training.numerics import Precision
from clove_ssl.training.processes import Process

_BEGUN = 4  # test batches that wait to be coded; their masks lie on the device


@dataclass(frozen=True)
class Evaluation:
    """Everything that predictions depend on besides the step."""

    config: FinetuneConfig
    task: Task
    data: TaskData
    reading: Reading
    precision: Precision
    process: Process
    console: Console

    def predict(
        self, model: TaskModel, folder: Path, *, step: int, export: RunDirectory | None = None
    ) -> None:
        """Predict all test images after ``step`` steps, and write one file into ``folder``.

        ``export`` is the run into which the very model that predicts is written, too.
        """
        with _left_as_found(model):
            with self.console.working("Measuring norm statistics"):
                self.measure_norms(model)
            if export is not None and self.process.is_first:
                write_finetuned(export, self.config, model, self.task.vocabulary(self.data))
            predictions = self._predictions(model)
        everywhere = self.process.gather(predictions)
        if self.process.is_first:
            header = {
                "task": self.config.task.name,
                "backbone": self.config.backbone,
                "config": files.fingerprint(self.config),
                "iteration": step,
                "seed": self.config.seed,
            }
            joined = [one for part in everywhere for one in part]
            self.task.write_predictions(folder, joined, self.data, header=header)

    def measure_norms(self, model: TaskModel) -> None:
        """Replace running norm statistics by those of fresh training batches."""
        count = self.config.evaluation.precise_norm_batches
        if count:
            model.train()
            estimate_statistics(model, self._training_passes(model, count), self.process)

    def _training_passes(self, model: TaskModel, count: int) -> Iterator[None]:
        """Forward passes over the batches that would follow the end of the run."""
        reading, total = self.reading, self.config.total_iterations
        passes_per_step = reading.batch_size // (reading.processes * reading.micro_batch)
        steps = -(-count // passes_per_step)
        batches = self.task.training_batches(self.data, reading.between(total, total + steps))
        with ended(iter(batches)) as stream:
            for batch in islice(stream, count):
                with self.precision.autocast():
                    model.losses(batch.to(self.process.device, non_blocking=True), step=total)
                yield

    def _predictions(self, model: TaskModel) -> list[Any]:
        """Workers read ahead, this thread feeds the device, another one codes what was found."""
        model.eval()
        found: list[Any] = []
        begun: deque[Future[list[Any]]] = deque()
        share = -(-self.data.test_images // self.process.world_size)
        with (
            self.console.working("Evaluating", total=share) as work,
            torch.no_grad(),
            self.precision.autocast(),
            ThreadPoolExecutor(1) as coder,
            ended(iter(self.task.test_batches(self.data, self.reading))) as batches,
        ):
            for batch in batches:
                here = batch.to(self.process.device, non_blocking=True)
                begun.append(coder.submit(model.begin_prediction(here)))
                if len(begun) > _BEGUN:
                    found += begun.popleft().result()
                    work.done()  # of one image, in which many things may be found
            for rest in begun:
                found += rest.result()
                work.done()
        return found


@contextmanager
def _left_as_found(model: nn.Module) -> Iterator[None]:
    """Put back every buffer and mode that an evaluation changes."""
    training = model.training
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
        model.train(training)
