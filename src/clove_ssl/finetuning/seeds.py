"""Fine-tuning, once or with several seeds; what a run itself does is in ``finetuning/run.py``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from clove_ssl.config import files
from clove_ssl.config.finetuning import RANDOM, FinetuneConfig, LabelledDataConfig
from clove_ssl.config.resuming import ResumeChanges
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.finetuning.fitting import Fit, fit_to_data
from clove_ssl.finetuning.plan import plan_finetuning
from clove_ssl.finetuning.run import FinetuneResult, Parts, prepare, train
from clove_ssl.finetuning.score import summarize_runs
from clove_ssl.report.page import write_report
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import starting_folder
from clove_ssl.tasks.base import TaskData
from clove_ssl.training.processes import Process, joined


def finetune(config: FinetuneConfig, *, overwrite: bool = False) -> FinetuneResult:
    """Fine-tune and score a backbone; ``config.out`` must be new, or a run to be overwritten."""
    if not isinstance(config, FinetuneConfig):
        raise UserError(
            f"finetune takes a FinetuneConfig, not a {type(config).__name__}. Read one with "
            "clove_ssl.config.files, or type: clove finetune TASK --backbone RUN --data D --out OUT"
        )
    with joined(config.device) as process:
        if process.is_first:  # before minutes of looking through the data
            directory.check_is_free(config.out, overwrite=overwrite)
        parts = prepare(config, process)
        config = replace(config, data=_from_anywhere(config.data))
        if not config.task.is_published:
            config = _fitted(config, process, parts).config
            parts = replace(parts, task=config.task.build())
        if process.is_first:
            directory.begin(config, overwrite=overwrite)
        process.wait()
        return _go_on(config, process, parts)


def fit(config: FinetuneConfig, data: TaskData) -> Fit:
    """What a run on own classes would be, decided by its data and this machine; not begun."""
    with joined(config.device) as process:
        parts = prepare(config, process, data)
        return _fitted(replace(config, data=_from_anywhere(config.data)), process, parts)


def _fitted(config: FinetuneConfig, process: Process, parts: Parts) -> Fit:
    """What the data and the device decide, decided; a resumed run has it in its config."""
    if parts.data is None:
        parts.task.write_scenes(config.data, config.out)  # which own tasks refuse
    assert parts.data is not None
    found = fit_to_data(
        config, parts.task, parts.data, parts.start.backbone, parts.precision, process
    )
    plan_finetuning(found.config, images=1, processes=process.world_size)
    return found


def resume(path: str | Path, changes: ResumeChanges | None = None) -> FinetuneResult:
    """Continue a run, or several, from their last good checkpoints."""
    run = directory.find(Path(path))
    changes = changes or ResumeChanges()
    config = _changed(_found_again(run), changes)
    with joined(config.device) as process:
        parts = prepare(config, process)
        if changes.data and process.is_first:
            _keep_place(run, config.data)
        return _go_on(config, process, parts)


def _found_again(run: RunDirectory) -> FinetuneConfig:
    """The config of a run, whose backbone may lie below the folder that it was started in."""
    config = files.load(FinetuneConfig, run.config)
    folder, backbone = starting_folder(run, config.out), config.backbone
    # Before its first checkpoint a run still needs the backbone, by the name that was typed there.
    if folder is not None and backbone != RANDOM and not os.path.exists(backbone):
        there = folder / os.path.expanduser(backbone)
        backbone = str(there) if there.exists() else backbone
    return replace(config, out=run.path, backbone=backbone)


def _changed(config: FinetuneConfig, changes: ResumeChanges) -> FinetuneConfig:
    """The config with what may change about a fine-tuning run."""
    if changes.changes_length or changes.max_bad is not None:
        raise UserError(
            "The length of a fine-tuning run cannot change, since the steps at which its learning "
            "rate falls depend on it, and no unreadable files are allowed. Leave out --epochs, "
            "--steps and --max-bad, or start a new run with --steps."
        )
    if len(changes.data) > 1:
        raise UserError("--data names several folders, but a fine-tuning run has one. Give one.")
    if changes.micro_batch is not None:
        config = replace(config, micro_batch=changes.micro_batch)
    if changes.data:
        config = replace(config, data=_moved(config.data, Path(changes.data[0])))
    return config


def _moved(data: LabelledDataConfig, root: Path) -> LabelledDataConfig:
    """The same images below another folder; files below the old one move with it."""
    new = root.expanduser().absolute()
    names = ("train_annotations", "train_images", "test_annotations", "test_images")
    given = {name: path for name in names if (path := getattr(data, name)) is not None}
    below = {
        name: new / path.relative_to(data.root)
        for name, path in given.items()
        if data.root is not None and path.is_relative_to(data.root)
    }
    return replace(data, root=new, **below)


def _keep_place(run: RunDirectory, data: LabelledDataConfig) -> None:
    """Write down where the images are now, for the run and for each of several."""
    for each in (run, *(RunDirectory(path) for path in sorted(run.path.glob("run-*")))):
        if each.config.is_file():
            known = files.load(FinetuneConfig, each.config)
            files.save(replace(known, data=data), each.config)


def _from_anywhere(data: LabelledDataConfig) -> LabelledDataConfig:
    """The same images, by names that hold in whatever folder the run is resumed or scored."""
    names = ("root", "train_annotations", "train_images", "test_annotations", "test_images")
    given = {name: getattr(data, name) for name in names}
    places: dict[str, Any] = {
        name: Path(os.path.expanduser(path)).absolute() for name, path in given.items() if path
    }
    return replace(data, **places)


def _go_on(config: FinetuneConfig, process: Process, parts: Parts) -> FinetuneResult:
    if config.runs == 1:
        return train(config, RunDirectory(config.out), process, parts)
    return _repeat(config, process, parts.data)


def _repeat(config: FinetuneConfig, process: Process, data: TaskData | None) -> FinetuneResult:
    """The same run with several seeds; those that have finished are not run again."""
    whole = RunDirectory(config.out)
    for number in range(config.runs):
        run = whole.repetition(number)
        one = replace(config, out=run.path, seed=config.seed + number, runs=1)
        if process.is_first and not run.config.is_file():
            files.save(one, directory.make(run.path).config)
        process.wait()
        result = train(one, run, process, prepare(one, process, data), whole=whole)
        if not result.finished:
            return replace(result, run=whole.path)
    scores: dict[str, float] = {}
    if process.is_first:
        with Console() as console:
            scores = summarize_runs(whole, config, console)
        write_report(whole)
    process.wait()
    return FinetuneResult(whole.path, True, config.total_iterations, scores)
