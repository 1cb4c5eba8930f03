"""One fine-tuning run: the training loop of pre-training, around a downstream task.

As there, a run is a pure function of its config, and resuming repeats the uninterrupted run bit
for bit on the same device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from clove_ssl.backbones.build import fuse_norms
from clove_ssl.config.choice import Choice
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console
from clove_ssl.data.loading import explained_deaths
from clove_ssl.errors import UserError, counted
from clove_ssl.finetuning.choices import Choices, choose_capture, choose_readers
from clove_ssl.finetuning.evaluate import Evaluation
from clove_ssl.finetuning.evaluated_run import EvaluatedRun
from clove_ssl.finetuning.learner import TaskLearner, capture_part, plan_reading
from clove_ssl.finetuning.plan import (
    KEPT_CHECKPOINTS,
    check_needs,
    check_room_for_scenes,
    plan_finetuning,
)
from clove_ssl.finetuning.score import check_scorable
from clove_ssl.finetuning.self_check import announce, examine_start, write_self_check
from clove_ssl.finetuning.starting_heads import load_heads
from clove_ssl.finetuning.starting_point import StartingPoint, continued_backbone, open_backbone
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.report.page import get_ready, write_report
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import record_start
from clove_ssl.tasks.base import Task, TaskData, TaskModel
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.numerics import Precision, choose_precision, start_repeatably
from clove_ssl.training.processes import Process, owned, placed
from clove_ssl.training.signals import terminated_like_interrupted

ADVICE = "Try a smaller --lr, a longer --warmup-steps, or --precision fp32 in a new run."


@dataclass(frozen=True)
class FinetuneResult:
    """What a run leaves behind."""

    run: Path
    finished: bool
    step: int
    scores: dict[str, float]  # of the first process; empty until the run has finished


@dataclass(frozen=True)
class Parts:
    """What can be built, and found wrong, before anything is written."""

    task: Task
    start: StartingPoint
    precision: Precision
    data: TaskData | None  # none where built-in scenes still have to be written


@dataclass(frozen=True)
class Setup:
    """What a run trains, on what, and how: known once its labelled images are there."""

    config: FinetuneConfig
    task: Task
    start: StartingPoint
    data: TaskData
    model: TaskModel
    choices: Choices
    heads: str  # what became of those that were asked for


def prepare(config: FinetuneConfig, process: Process, data: TaskData | None = None) -> Parts:
    """Everything that can be refused before anything is written; ``data`` may be read already."""
    start_repeatably(
        config.seed, process.device, deterministic=config.deterministic, sizes_vary=True
    )
    precision = choose_precision(config.precision, process.device)
    precision.prepare()
    task = config.task.build()
    plan_finetuning(config, images=1, processes=process.world_size)  # refuses what does not divide
    start = continued_backbone(_first(config), config, task) or open_backbone(config, task)
    if data is None and not config.data.uses_scenes:
        with Console(speaks=process.is_first).working("Reading labels"):
            data = task.read(config.data)
    return Parts(task, start, precision, data)


def _first(config: FinetuneConfig) -> RunDirectory:
    """The run itself, or the first of several."""
    whole = RunDirectory(config.out)
    return whole if config.runs == 1 else whole.repetition(0)


def train(
    config: FinetuneConfig,
    run: RunDirectory,
    process: Process,
    parts: Parts,
    *,
    whole: RunDirectory | None = None,
) -> FinetuneResult:
    """Train and score one run, which may be one of several that ``whole`` holds."""
    told = whole or run
    workers = choose_readers(config, process)
    deaths = explained_deaths(
        workers=workers.value, config=str(told.config), resume=f"clove resume {told.path}"
    )
    with owned(run, process) as console, _told_how_to_go_on(told, console), deaths:
        check_scorable(parts.task, config, run, console, is_one_of_many=whole is not None)
        setup = _set_up(config, run, process, parts, console, workers)
        loop = _build_loop(run, process, console, setup)
        _check_unchanged(setup.data, loop.restore())
        if process.is_first:
            _introduce(run, loop, setup)
        evaluation = _plan_evaluation(loop, setup)
        scores = EvaluatedRun(run, loop, setup.choices.plan, setup.model, evaluation).train()
        if scores is None:
            console.say(f"Stopped after step {loop.step}. {_go_on_with(told)}")
        elif process.is_first:
            _finish(run, evaluation, console, step=loop.step)
        process.wait()
        return FinetuneResult(run.path, scores is not None, loop.step, scores or {})


@contextmanager
def _told_how_to_go_on(run: RunDirectory, console: Console) -> Iterator[None]:
    """Training stops by itself when it is asked to; evaluations are broken off, and repeated."""
    try:
        with terminated_like_interrupted():
            yield
    except KeyboardInterrupt:
        console.say(f"Interrupted. {_go_on_with(run)}")
        raise


def _go_on_with(run: RunDirectory) -> str:
    return f"Go on with: clove resume {run.path}"


def _finish(run: RunDirectory, evaluation: Evaluation, console: Console, *, step: int) -> None:
    """Draw pictures, write the report, and say where everything is."""
    count = evaluation.config.evaluation.pictures
    if count:
        test = evaluation.data.test
        with console.working("Drawing test images"):
            evaluation.task.paint(run.predictions, test, run.pictures, count=count)
    write_report(run)
    console.say(f"Done: {counted(step, 'step')}.")
    console.choice("scores", str(run.scores))
    console.choice("report", str(run.report))
    console.choice("model", str(run.model))


def _set_up(
    config: FinetuneConfig,
    run: RunDirectory,
    process: Process,
    parts: Parts,
    console: Console,
    workers: Choice[int],
) -> Setup:
    """Read the images, plan, and build the model, if they fit."""
    data = _labelled_data(config, run, process, parts, console)
    plan = plan_finetuning(config, images=data.train_images, processes=process.world_size)
    model = _build_model(config, process, parts, data)
    check_needs(config, run, plan, model, process)
    heads = _start_heads(config, parts, model)
    capture = choose_capture(config, plan, process, model)
    choices = Choices(plan=plan, precision=parts.precision, workers=workers, capture=capture)
    return Setup(config, parts.task, parts.start, data, model, choices, heads)


def _labelled_data(
    config: FinetuneConfig, run: RunDirectory, process: Process, parts: Parts, console: Console
) -> TaskData:
    data = parts.data
    if data is None:
        if process.is_first:
            check_room_for_scenes(config.data, run.scenes)
            with console.working("Writing scenes"):
                parts.task.write_scenes(config.data, run.scenes)
        process.wait()
        data = parts.task.read_scenes(run.scenes)
    if config.fraction < 1:
        data = parts.task.take_fraction(data, config.fraction, seed=config.seed)
    return data


def _build_model(
    config: FinetuneConfig, process: Process, parts: Parts, data: TaskData
) -> TaskModel:
    model = parts.task.build_model(parts.start.backbone, data, seed=config.seed)
    if process.world_size > 1 and config.sync_norm:
        synchronize_norms(model, process.device.type)
    model = placed(model, process.device)
    if process.device.type == "cuda":
        fuse_norms(model)
    return model


def _start_heads(config: FinetuneConfig, parts: Parts, model: TaskModel) -> str:
    """Load the heads that were asked for and say what fitted; a resumed run has them already."""
    if not config.heads or parts.start.remembered:
        return ""
    return load_heads(model, config.backbone).describe()


def _build_loop(
    run: RunDirectory, process: Process, console: Console, setup: Setup
) -> TrainingLoop:
    solver, plan, model = setup.config.solver, setup.choices.plan, setup.model
    loop = TrainingLoop(
        learner=TaskLearner(model),
        optimizer=torch.optim.SGD(
            model.parameter_groups(solver.weight_decay),
            lr=plan.peak_lr,
            momentum=solver.momentum,
            # One kernel, and hardly any work for the host.
            fused=True if process.device.type == "cuda" else None,
        ),
        lr=plan.lr(),
        plan=plan,
        precision=setup.choices.precision,
        process=process,
        store=CheckpointStore(run.checkpoints, keep=KEPT_CHECKPOINTS, warn=console.warn),
        console=console,
        advice=ADVICE,
    )
    if setup.choices.capture.value:
        capture_part(model, loop)
    return loop


def _check_unchanged(data: TaskData, state: dict[str, object]) -> None:
    if state and state.get("images") != data.train_images:
        raise UserError(
            f"There are {data.train_images} training images, but this run was started with "
            f"{state.get('images')}, so their order would change. Restore the files, or start a "
            "new run with another --out."
        )


def _introduce(run: RunDirectory, loop: TrainingLoop, setup: Setup) -> None:
    """The self-check, said and stored, and the record of this start."""
    get_ready()
    config, choices, data, model = setup.config, setup.choices, setup.data, setup.model
    facts = examine_start(config, choices.plan, setup.start, model, data)
    if setup.heads:
        facts["heads"] = setup.heads
    facts |= choices.facts()
    announce(config, choices.plan, facts, data, loop.console)
    if loop.step:
        loop.console.say(f"Resuming after step {loop.step}")
    else:  # later starts hold trained weights, not the initial ones
        write_self_check(run, config, facts, model, data)
    record_start(
        run,
        loop.process.device,
        step=loop.step,
        processes=loop.process.world_size,
        choices=choices.values(),
    )


def _plan_evaluation(loop: TrainingLoop, setup: Setup) -> Evaluation:
    """What will be evaluated, and which batches are read until then."""
    config, choices, process = setup.config, setup.choices, loop.process
    workers = choices.workers.value
    reading = plan_reading(config, choices.plan, process, start_step=loop.step, workers=workers)
    return Evaluation(
        config, setup.task, setup.data, reading, choices.precision, process, loop.console
    )
