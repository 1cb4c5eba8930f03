"""A run that no protocol describes is fitted to its data and its device, once, when it begins.

Batch and time are found by trial: a copy of the model takes a few steps on real batches. What was
chosen stands in ``config.yaml``, so a resumed run repeats it and tries nothing.
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console, duration
from clove_ssl.data.loading import choose_workers
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading, Task, TaskData, TaskModel
from clove_ssl.training.precision import Precision
from clove_ssl.training.processes import Process
from clove_ssl.training.repeatability import random_state, set_random_state

IMAGES_SEEN = 40_000
"""Images that a run sees unless it is told otherwise, so that small sets are seen more often."""
EPOCHS = (12, 150)
LARGEST_BATCH = {"cuda": 16, "cpu": 4}
"""Images of a step and process; more gains no speed and leaves too few steps."""
IMAGES_PER_BATCH = 4
"""A batch is at most one in so many training images."""
WARMUP = 500
EVALUATIONS = 20
EVALUATION_SHARE = 0.2
"""Of the time of a run, that evaluations may take."""
CPU_MINUTES = 60.0
"""A run on a CPU without a budget takes no longer."""
NORM_BATCHES = 50
LEAST_ITERATIONS = 20
_MEMORY_SHARE = 0.8  # of a GPU, that a trial may take; the largest images may be yet to come
_PASSES = {"cuda": (3, 5), "cpu": (1, 1)}  # to warm up, and to be measured


@dataclass(frozen=True)
class Pace:
    """How long things take on this machine, in seconds."""

    step: float  # of all processes together
    evaluation: float  # of all test images, norms included


def fit_to_data(
    config: FinetuneConfig,
    task: Task,
    data: TaskData,
    backbone: Any,
    precision: Precision,
    process: Process,
) -> FinetuneConfig:
    """The config with everything that the data and the device decide."""
    with Console(speaks=process.is_first) as console:
        for note in data.notes:
            console.say(note)
        for problem in data.problems:
            console.warn(problem)
        fitted = task.adapted(data, on_gpu=process.device.type == "cuda")
        config = replace(config, task=fitted)
        if precision.name == "bf16":  # whoever predicts later has to know it
            config = replace(config, precision="bf16")
        trial = _Trial(config, data, backbone, precision, process)
        random = random_state(process.device)
        batch = config.batch_size or trial.largest_batch()
        config = replace(config, batch_size=batch)
        pace = _slowest(process, trial.pace(batch))
        set_random_state(random, process.device)
        config = with_schedule(config, data, pace, on_gpu=process.device.type == "cuda")
        _tell(config, data, pace, console)
        return config


class _Trial:
    """A copy of the model that takes steps which nobody keeps."""

    def __init__(
        self,
        config: FinetuneConfig,
        data: TaskData,
        backbone: Any,
        precision: Precision,
        process: Process,
    ) -> None:
        self._config, self._data, self._process = config, data, process
        self._precision = precision
        self._task = config.task.build()
        self._backbone = backbone

    def largest_batch(self) -> int:
        """Images of a step over all processes: the most that fit, halved until they do."""
        device, images = self._process.device, _images(self._config, self._data)
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
        warm, measured = _PASSES[self._process.device.type]
        workers, _ = choose_workers(
            self._config.data,
            processes_here=self._process.local_world_size,
            trains_on_cpu=self._process.device.type == "cpu",
        )
        model = self._model()
        share = max(1, batch // self._process.world_size)
        reading = self._reading(share, warm + measured)
        batches, loading = _timed_list(self._task.training_batches(self._data, reading))
        step = self._mean_seconds(batches, warm, lambda each: self._step(model, each))
        step += loading / len(batches) / max(1, workers)
        norms = self._config.evaluation.precise_norm_batches and _norm_batches(
            _images(self._config, self._data), batch
        )
        images = islice(self._task.test_batches(self._data, reading), warm + measured)
        tests, loading = _timed_list(images)
        model.eval()
        warm = min(warm, len(tests) - 1)
        image = self._mean_seconds(tests, warm, lambda each: self._predict(model, each))
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
            _, total = torch.cuda.mem_get_info(device)
            return torch.cuda.max_memory_allocated(device) < _MEMORY_SHARE * total
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            model = None
            torch.cuda.empty_cache()

    def _model(self) -> TaskModel:
        model = self._task.build_model(
            copy.deepcopy(self._backbone), self._data, seed=self._config.seed
        )
        if self._process.device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)
        return model.to(self._process.device).train()

    def _reading(self, share: int, steps: int) -> Reading:
        return Reading(
            seed=self._config.seed,
            batch_size=share,
            micro_batch=share,
            processes=1,
            rank=0,
            start_step=0,
            stop_step=steps,
            workers=0,
            prefetch=1,
            pin_memory=False,
        )

    def _step(self, model: TaskModel, batch: Any) -> None:
        with self._precision.autocast():
            losses = model.losses(batch.to(self._process.device), step=0)
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        model.zero_grad(set_to_none=True)

    def _predict(self, model: TaskModel, batch: Any) -> None:
        with torch.no_grad(), self._precision.autocast():
            model.predict(batch.to(self._process.device))

    def _mean_seconds(self, batches: list[Any], warm: int, work: Any) -> float:
        for batch in batches[:warm]:
            work(batch)
        self._drain()
        start = time.perf_counter()
        for batch in batches[warm:]:
            work(batch)
        self._drain()
        return (time.perf_counter() - start) / len(batches[warm:])

    def _drain(self) -> None:
        if self._process.device.type == "cuda":
            torch.cuda.synchronize(self._process.device)


def _timed_list(batches: Any) -> tuple[list[Any], float]:
    start = time.perf_counter()
    return list(batches), time.perf_counter() - start


def _slowest(process: Process, pace: Pace) -> Pace:
    """What all processes have to wait for; the same everywhere."""
    all_of_them = process.gather(pace)
    return Pace(max(p.step for p in all_of_them), max(p.evaluation for p in all_of_them))


def _images(config: FinetuneConfig, data: TaskData) -> int:
    return max(1, round(config.fraction * data.train_images))


def _norm_batches(images: int, batch: int) -> int:
    return min(NORM_BATCHES, math.ceil(images / batch))


def with_schedule(
    config: FinetuneConfig, data: TaskData, pace: Pace, *, on_gpu: bool
) -> FinetuneConfig:
    """Iterations, warm-up, learning rate and evaluations; what was asked for stays."""
    images = _images(config, data)
    total = _iterations(config, images, pace, on_gpu=on_gpu)
    evaluations = _evaluations(total * pace.step, pace.evaluation)
    every = config.evaluation.every or math.ceil(total / evaluations)
    norms = config.evaluation.precise_norm_batches
    warmup = config.warmup_iterations
    return replace(
        config,
        iterations=total,
        epochs=None,
        minutes=None,
        warmup_iterations=min(WARMUP, total // 10) if warmup is None else warmup,
        lr=config.peak_lr,
        checkpoint_every=min(config.checkpoint_every, every),
        evaluation=replace(
            config.evaluation,
            every=min(every, total),
            precise_norm_batches=norms and _norm_batches(images, config.effective_batch),
        ),
    )


def _iterations(config: FinetuneConfig, images: int, pace: Pace, *, on_gpu: bool) -> int:
    if config.iterations is not None:
        return config.iterations
    if config.minutes is not None:
        return _iterations_in(60 * config.minutes, pace)
    least, most = EPOCHS
    epochs = config.epochs or min(max(IMAGES_SEEN / images, least), most)
    total = max(1, math.ceil(epochs * images / config.effective_batch))
    if config.epochs is None and not on_gpu:
        seconds = max(60 * CPU_MINUTES, 2 * pace.evaluation + 2 * LEAST_ITERATIONS * pace.step)
        total = min(total, _iterations_in(seconds, pace))
    return max(total, min(LEAST_ITERATIONS, total))


def _iterations_in(seconds: float, pace: Pace) -> int:
    """How many iterations fit into a time, with the evaluations that come with them."""
    evaluations = min(EVALUATIONS, max(1, int(EVALUATION_SHARE * seconds / pace.evaluation)))
    total = int((seconds - evaluations * pace.evaluation) / pace.step)
    if total < LEAST_ITERATIONS:
        needed = (LEAST_ITERATIONS * pace.step + pace.evaluation) / 60
        raise UserError(
            f"{seconds / 60:.3g} minutes are too short: an iteration takes {pace.step:.2g} s here "
            f"and an evaluation {pace.evaluation:.2g} s. Give --minutes {math.ceil(needed)} or "
            "more, smaller images (--task.side), or a smaller --architecture."
        )
    return total


def _evaluations(training: float, evaluation: float) -> int:
    """How often a run of so many seconds is evaluated; its end is one of these times."""
    allowed = EVALUATION_SHARE / (1 - EVALUATION_SHARE) * training / max(evaluation, 1e-9)
    return min(EVALUATIONS, max(1, int(allowed)))


def _tell(config: FinetuneConfig, data: TaskData, pace: Pace, console: Console) -> None:
    images, total = _images(config, data), config.total_iterations
    times = math.ceil(total / (config.evaluation.every or total))
    seconds = total * pace.step + times * pace.evaluation
    epochs = total * config.effective_batch / images
    console.say("Chosen for this data and machine")
    console.choice("batch", f"{config.effective_batch} images")
    console.choice("schedule", f"{total:,} iterations, {epochs:.1f} epochs of {images:,} images")
    console.choice("evaluations", f"{times}, the best model is kept")
    console.choice(
        "time",
        f"about {duration(seconds)}",
        f"{pace.step:.2g} s an iteration, {pace.evaluation:.2g} s an evaluation; change it with "
        "--minutes or --epochs",
    )
