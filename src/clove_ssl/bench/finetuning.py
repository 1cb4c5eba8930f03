"""``clove bench TASK``: how fast steps of fine-tuning are, and how they compare with the floor.

The floor is the bare backbone, forward and backward on as many pixels; what is frozen stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from clove_ssl.backbones.build import build_backbone, fuse_norms
from clove_ssl.bench.clock import (
    END_TO_END,
    FLOOR,
    WARM_UP,
    Clock,
    Measurement,
    check_writable,
)
from clove_ssl.bench.config import TaskBenchConfig
from clove_ssl.config.finetuning import RANDOM, protocol
from clove_ssl.data.loading import choose_workers
from clove_ssl.finetuning.choices import choose_capture
from clove_ssl.finetuning.learner import TaskFeed
from clove_ssl.finetuning.plan import plan_finetuning
from clove_ssl.layers.captured import SEEN_BEFORE, Recorder
from clove_ssl.tasks.base import Reading, Task, TaskData, TaskModel
from clove_ssl.training.numerics import choose_precision, start_repeatably
from clove_ssl.training.processes import Process, choose_device, placed

Step = Callable[[Any], None]

DIFFERENT = 8
"""Batches, which come in turns: sizes of images differ, and are planned or recorded once."""


def run_task_bench(config: TaskBenchConfig) -> list[Measurement]:
    """Measure everything and show it."""
    check_writable(config.out)
    task = config.task.build()
    with _labelled_data(config, task) as data:
        bench = TaskBench(config, task, data)
        bench.measure_floor()
        step = bench.measure_steps()
        bench.measure_reading()
        bench.measure_whole(step)
    bench.show()
    return bench.measurements


@contextmanager
def _labelled_data(config: TaskBenchConfig, task: Task) -> Iterator[TaskData]:
    """What a user named, or scenes that are gone afterwards."""
    if not config.data.uses_scenes:
        yield task.read(config.data)
        return
    with TemporaryDirectory() as folder:
        task.write_scenes(config.data, Path(folder))
        yield task.read_scenes(Path(folder))


class TaskBench(Clock):
    """A clock for one device, models of a task, and batches for them."""

    def __init__(self, config: TaskBenchConfig, task: Task, data: TaskData) -> None:
        device = choose_device(config.device)
        super().__init__(
            device,
            batch=config.batch,
            steps=config.steps,
            about={"task": config.task.name, "backbone": config.architecture},
            out=config.out,
        )
        start_repeatably(0, device, deterministic=False, sizes_vary=True)
        self.precision = choose_precision(config.precision, device)
        self.precision.prepare()
        self._process = Process(0, 1, 0, 1, device)
        self._on_gpu = device.type == "cuda"
        self._recorder = Recorder(device) if self._on_gpu else None
        self._workers = choose_workers(
            config.data, processes_here=1, trains_on_cpu=not self._on_gpu
        ).value
        self._config, self._task, self._data = config, task, data
        self._batches = list(task.training_batches(data, self._reading(DIFFERENT, workers=0)))

    def measure_floor(self) -> None:
        """The backbone of the model alone, on canvases of the same batches."""
        backbone = self._model().backbone
        canvases = cycle([self._canvas(batch) for batch in self._batches])

        def work() -> None:
            with self.precision.autocast():
                maps = backbone(next(canvases)).values()
            torch.stack([each.float().mean() for each in maps]).sum().backward()  # type: ignore[no-untyped-call]
            backbone.zero_grad(set_to_none=True)

        self.measure(FLOOR, work)

    def measure_steps(self) -> Step:
        """Steps kernel by kernel and, where that can be, captured; gives those of a usual run."""
        plain = self._measured("step, kernel by kernel", self._step_of(self._model()))
        model = self._model()
        reason = model.why_not_captured()
        if self._recorder is None or reason:
            self.say(f"steps are not captured: {reason or 'on a CPU'}")
            return plain
        is_usual = self._would_capture(model)
        model.capture(self._recorder, accumulates=False, warn=self.say)
        captured = self._measured("step, captured", self._step_of(model))
        return captured if is_usual else plain

    def _would_capture(self, model: TaskModel) -> bool:
        """Whether a run of this task captures its steps by default."""
        usual = protocol(self._config.task.name, Path(), RANDOM)
        run = replace(usual, task=self._config.task, batch_size=self.images)
        plan = plan_finetuning(run, images=self._data.train_images, processes=1)
        return choose_capture(run, plan, self._process, model).value

    def measure_reading(self) -> None:
        """What workers deliver when nobody trains."""
        by = f"{self._workers} workers" if self._workers else "in this process"
        name = f"reading, {by}"
        with self._feed() as feed:
            seconds = self.seconds_per_call(name, feed.next, warm_up=1 + WARM_UP)
        self.record(name, self.images / seconds)

    def measure_whole(self, step: Step) -> None:
        """Steps on what is read at the same time, as in a run."""
        with self._feed() as feed, self._stream():
            self.measure(END_TO_END, lambda: step(feed.next()), resets_memory=False)

    def _feed(self) -> AbstractContextManager[TaskFeed]:
        """Enough batches for one measurement."""
        calls = 1 + WARM_UP + self.steps
        batches = self._task.training_batches(self._data, self._reading(calls, self._workers))
        return closing(TaskFeed(batches, self._process, images=self._data.train_images))

    def _measured(self, name: str, step: Step) -> Step:
        """Measure steps when all sizes have come so often that what is recorded is."""
        batches = cycle(self._batches)
        warm_up = (SEEN_BEFORE + 1) * len(self._batches) if self._on_gpu else WARM_UP
        with self._stream():
            self.measure(name, lambda: step(next(batches)), warm_up=warm_up)
        return step

    def _stream(self) -> AbstractContextManager[None]:
        """Where the work of a run belongs."""
        return nullcontext() if self._recorder is None else self._recorder.own_stream()

    def _step_of(self, model: TaskModel) -> Step:
        """A whole step, from the host's memory to new weights."""
        groups = model.parameter_groups(1e-4)
        fused = True if self._on_gpu else None
        optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9, fused=fused)

        def step(batch: Any) -> None:
            here = batch.to(self.device, non_blocking=self._on_gpu)
            with self.precision.autocast():
                losses = model.losses(here, step=0)
                loss = torch.stack(list(losses.values())).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def _model(self) -> TaskModel:
        """The model as a run builds it, with random weights."""
        torch.manual_seed(0)
        backbone = build_backbone(self._task.backbone_config(self._config.architecture))
        model = placed(self._task.build_model(backbone, self._data, seed=0), self.device)
        if self._on_gpu:
            fuse_norms(model)
        return model.train()

    def _canvas(self, batch: Any) -> Tensor:
        """Pixels (B, 3, H, W) in the size of the largest image of a batch."""
        height, width = (max(each.shape[axis] for each in batch.images) for axis in (1, 2))
        pixels = torch.randn(self.images, 3, height, width, device=self.device)
        return pixels.to(memory_format=torch.channels_last) if self._on_gpu else pixels

    def _reading(self, batches: int, workers: int) -> Reading:
        return Reading.alone(
            batch=self.images, steps=batches, workers=workers, pin_memory=self._on_gpu
        )
