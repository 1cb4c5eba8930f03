"""A run that no protocol describes is fitted to its data and its device, once, when it begins.

Batch and time are found by trial: a copy of the model takes a few steps on real batches. What was
chosen stands in ``config.yaml``, so a resumed run repeats it and tries nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console, duration
from clove_ssl.errors import UserError
from clove_ssl.finetuning.trial import Pace, Trial, images_used, norm_batches
from clove_ssl.tasks.base import Task, TaskData
from clove_ssl.training.numerics import Precision, random_state, set_random_state
from clove_ssl.training.processes import Process

IMAGES_SEEN = 40_000
"""Images that a run sees unless it is told otherwise, so that small sets are seen more often."""
EPOCHS = (12, 150)
WARMUP = 500
EVALUATIONS = 20
EVALUATION_SHARE = 0.2
"""Of the time of a run, that evaluations may take."""
CPU_MINUTES = 60.0
"""A run on a CPU without a budget takes no longer."""
LEAST_ITERATIONS = 20


@dataclass(frozen=True)
class Fit:
    """A run as it was fitted, and how long it will take here."""

    config: FinetuneConfig
    seconds: float


def fit_to_data(
    config: FinetuneConfig,
    task: Task,
    data: TaskData,
    backbone: Backbone,
    precision: Precision,
    process: Process,
) -> Fit:
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
        trial = Trial(config, data, backbone, precision, process)
        random = random_state(process.device)
        with console.working("Measuring what fits, and how fast it is"):
            batch = config.batch_size or trial.largest_batch()
            config = replace(config, batch_size=batch)
            pace = _slowest(process, trial.pace(batch))
        set_random_state(random, process.device)
        config = with_schedule(config, data, pace, on_gpu=process.device.type == "cuda")
        fit = Fit(config, _seconds(config, pace))
        _tell(fit, data, pace, console)
        return fit


def _slowest(process: Process, pace: Pace) -> Pace:
    """What all processes have to wait for; the same everywhere."""
    all_of_them = process.gather(pace)
    return Pace(max(p.step for p in all_of_them), max(p.evaluation for p in all_of_them))


def with_schedule(
    config: FinetuneConfig, data: TaskData, pace: Pace, *, on_gpu: bool
) -> FinetuneConfig:
    """Steps, warm-up, learning rate and evaluations; what was asked for stays."""
    images = images_used(config, data)
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
            precise_norm_batches=norms and norm_batches(images, config.effective_batch),
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
    """How many steps fit into a time, with the evaluations that come with them."""
    evaluations = min(EVALUATIONS, max(1, int(EVALUATION_SHARE * seconds / pace.evaluation)))
    total = int((seconds - evaluations * pace.evaluation) / pace.step)
    if total < LEAST_ITERATIONS:
        needed = (LEAST_ITERATIONS * pace.step + pace.evaluation) / 60
        raise UserError(
            f"{seconds / 60:.3g} minutes are too short: a step takes {pace.step:.2g} s here "
            f"and an evaluation {duration(pace.evaluation)}. Give --minutes {math.ceil(needed)} or "
            "more, smaller images (--task.side), or a smaller --architecture."
        )
    return total


def _evaluations(training: float, evaluation: float) -> int:
    """How often a run of so many seconds is evaluated; its end is one of these times."""
    allowed = EVALUATION_SHARE / (1 - EVALUATION_SHARE) * training / max(evaluation, 1e-9)
    return min(EVALUATIONS, max(1, int(allowed)))


def _seconds(config: FinetuneConfig, pace: Pace) -> float:
    return config.total_iterations * pace.step + _times(config) * pace.evaluation


def _times(config: FinetuneConfig) -> int:
    """How often a run is evaluated."""
    return math.ceil(config.total_iterations / (config.evaluation.every or config.total_iterations))


def _tell(fit: Fit, data: TaskData, pace: Pace, console: Console) -> None:
    config = fit.config
    images, total = images_used(config, data), config.total_iterations
    epochs = total * config.effective_batch / images
    console.say("Chosen for this data and machine")
    for name, choice in config.task.build().choices().items():
        console.choice(name, choice)
    console.choice("batch", f"{config.effective_batch} images")
    console.choice("schedule", f"{total:,} steps, {epochs:.1f} epochs of {images:,} images")
    console.choice("evaluations", f"{_times(config)}, the best model is kept")
    console.choice(
        "time",
        f"about {duration(fit.seconds)}",
        f"{_brief(pace.step)} a step, {_brief(pace.evaluation)} an evaluation; change it with "
        "--minutes or --epochs",
    )


def _brief(seconds: float) -> str:
    """A short time with its fraction, a long one without."""
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)
