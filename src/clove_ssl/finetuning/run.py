"""One fine-tuning run: the training loop of pre-training, around a downstream task.

As there, a run is a pure function of its config, and resuming repeats the uninterrupted run bit
for bit on the same device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from clove_ssl.backbones.build import fuse_norms
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console
from clove_ssl.data.loading import explained_deaths
from clove_ssl.errors import UserError, counted
from clove_ssl.finetuning.best import BestModel, after_evaluation
from clove_ssl.finetuning.evaluate import Evaluation
from clove_ssl.finetuning.learner import (
    TaskFeed,
    TaskLearner,
    capture_part,
    choose_capture,
    choose_readers,
    plan_reading,
)
from clove_ssl.finetuning.plan import (
    KEPT_CHECKPOINTS,
    FinetunePlan,
    check_needs,
    check_room_for_scenes,
    plan_finetuning,
)
from clove_ssl.finetuning.score import check_scorable, say_scores, score_and_write, scores_of
from clove_ssl.finetuning.self_check import announce, examine_start, write_self_check
from clove_ssl.finetuning.starting_heads import load_heads
from clove_ssl.finetuning.starting_point import StartingPoint, continued_backbone, open_backbone
from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.report.page import get_ready, write_report
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import Metrics, read_metrics
from clove_ssl.runs.provenance import record_start
from clove_ssl.tasks.base import Task, TaskData, TaskModel
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.numerics import Precision, choose_precision, start_repeatably
from clove_ssl.training.observer import Observer
from clove_ssl.training.processes import Process, owned, placed
from clove_ssl.training.signals import Terminated, terminated_like_interrupted

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
    workers = choose_readers(config, process)
    with (
        owned(run, process) as console,
        _told_how_to_go_on(whole or run, console),
        explained_deaths(
            workers=workers[0],
            config=str((whole or run).config),
            resume=f"clove resume {(whole or run).path}",
        ),
    ):
        check_scorable(parts.task, config, run, console, is_one_of_many=whole is not None)
        data = _labelled_data(config, run, process, parts, console)
        plan = plan_finetuning(config, images=data.train_images, processes=process.world_size)
        model = _build_model(config, process, parts, data)
        check_needs(config, run, plan, model, process)
        heads = _start_heads(config, parts, model)
        capture = choose_capture(config, plan, process, model)
        loop = _build_loop(config, run, console, process, plan=plan, model=model, parts=parts)
        if capture[0]:
            capture_part(model, loop)
        _check_unchanged(data, loop.restore())
        _introduce(
            config,
            run,
            loop,
            plan,
            model=model,
            data=data,
            parts=parts,
            workers=workers,
            capture=capture,
            heads=heads,
        )
        reading = plan_reading(config, plan, process, start_step=loop.step, workers=workers[0])
        evaluation = Evaluation(
            config, parts.task, data, reading, parts.precision, process, console
        )
        finished, scores = _train_and_evaluate(run, loop, plan, model, evaluation)
        if not finished:
            console.say(f"Stopped after step {loop.step}. {_go_on_with(whole or run)}")
        elif process.is_first:
            _finish(run, evaluation, console, step=loop.step)
        process.wait()
        return FinetuneResult(run.path, finished, loop.step, scores)


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
    config: FinetuneConfig,
    run: RunDirectory,
    console: Console,
    process: Process,
    *,
    plan: FinetunePlan,
    model: TaskModel,
    parts: Parts,
) -> TrainingLoop:
    solver = config.solver
    groups = model.parameter_groups(solver.weight_decay)
    return TrainingLoop(
        learner=TaskLearner(model),
        optimizer=torch.optim.SGD(
            groups,
            lr=plan.peak_lr,
            momentum=solver.momentum,
            # One kernel, and hardly any work for the host.
            fused=True if process.device.type == "cuda" else None,
        ),
        lr=plan.lr(),
        plan=plan,
        precision=parts.precision,
        process=process,
        store=CheckpointStore(run.checkpoints, keep=KEPT_CHECKPOINTS, warn=console.warn),
        console=console,
        advice=ADVICE,
    )


def _check_unchanged(data: TaskData, state: dict[str, object]) -> None:
    if state and state.get("images") != data.train_images:
        raise UserError(
            f"There are {data.train_images} training images, but this run was started with "
            f"{state.get('images')}, so their order would change. Restore the files, or start a "
            "new run with another --out."
        )


def _introduce(
    config: FinetuneConfig,
    run: RunDirectory,
    loop: TrainingLoop,
    plan: FinetunePlan,
    *,
    model: TaskModel,
    data: TaskData,
    parts: Parts,
    workers: tuple[int, str],
    capture: tuple[bool, str],
    heads: str,
) -> None:
    """The self-check, said and stored, and the record of this start."""
    if not loop.process.is_first:
        return
    get_ready()
    facts = examine_start(config, plan, parts.start, model, data)
    if heads:
        facts["heads"] = heads
    facts["precision"] = f"{loop.precision.name} ({loop.precision.reason})"
    if loop.process.device.type == "cuda":
        facts["captured steps"] = f"{'yes' if capture[0] else 'no'} ({capture[1]})"
    announce(config, plan, facts, data, loop.console)
    if loop.step:
        loop.console.say(f"Resuming after step {loop.step}")
    else:  # later starts hold trained weights, not the initial ones
        write_self_check(run, config, facts, model, data)
    process = loop.process
    choices = {
        "precision": loop.precision.values(),
        "capture": dict(zip(("value", "reason"), capture, strict=True)),
        "workers": dict(zip(("value", "reason"), workers, strict=True)),
        "plan": plan.values(),
    }
    record_start(run, process.device, step=loop.step, processes=process.world_size, choices=choices)


def _train_and_evaluate(
    run: RunDirectory,
    loop: TrainingLoop,
    plan: FinetunePlan,
    model: TaskModel,
    evaluation: Evaluation,
) -> tuple[bool, dict[str, float]]:
    """Train from evaluation to evaluation; False when asked to stop before the end."""
    config, process = evaluation.config, loop.process
    scores: dict[str, float] = {}
    start = loop.step
    batches = evaluation.task.training_batches(evaluation.data, evaluation.reading)
    metrics = Metrics(run, config.logging, start_step=loop.step) if process.is_first else None
    observer = Observer(
        config.logging,
        plan,
        process,
        console=loop.console,
        metrics=metrics,
        slow_advice="Shorten the schedule with --steps, or take a smaller network.",
    )
    feed = TaskFeed(batches, process, images=evaluation.data.train_images)
    with closing(feed), closing(observer):
        best = BestModel(run, plan, config.evaluation.patience)
        for step in plan.evaluations(loop.step):
            done = loop.run(feed, observer, until=step)
            # After the last step there is still an evaluation, which may take longer than a
            # machine that goes away will wait.
            if not done or any(process.gather(loop.asked_to_stop)):
                return False, {}
            try:
                scores = _evaluated(
                    run, model, evaluation, observer, loop.console, step=step, trained=step > start
                )
            except Terminated:
                if process.world_size > 1:  # the others may wait; this one has to end to tell them
                    raise
                return False, {}
            if config.evaluation.best:
                scores, ends = after_evaluation(best, process, loop.console, step=step)
                if ends:
                    break
        return True, scores


def _is_logged(run: RunDirectory, scores: dict[str, float], *, step: int) -> bool:
    rows = read_metrics(run)
    return any(row["step"] == step and scores.keys() <= row.keys() for row in rows)


def _evaluated(
    run: RunDirectory,
    model: TaskModel,
    evaluation: Evaluation,
    observer: Observer,
    console: Console,
    *,
    step: int,
    trained: bool,
) -> dict[str, float]:
    """Scores after ``step`` steps, unless an earlier start has left them and none followed."""
    last = step == evaluation.config.total_iterations
    best = evaluation.config.evaluation.best
    place = run if last and not best else run.evaluation(step)
    process = evaluation.process
    if not trained and process.gather(place.scores.is_file())[0]:
        if not process.is_first:
            return {}
        # A kill may have come between the file of scores and the line about them.
        if not _is_logged(run, scores_of(place), step=step):
            observer.evaluated(step, scores_of(place))
        return scores_of(place)
    export = place if last or best else None
    evaluation.predict(model, place.predictions, step=step, export=export)
    if not process.is_first:
        return {}
    if missing := evaluation.task.why_not_scored():
        raise UserError(
            f"The model is trained, and what it predicts is in {place.predictions}. {missing}; "
            f"then: clove score {run.path}"
        )
    with console.working("Scoring"):
        scores = score_and_write(evaluation.task, place, evaluation.data.test)
    say_scores(scores, console, classes=last)
    observer.evaluated(step, scores_of(place))
    return scores_of(place)
