"""From predictions to scores, without a model or a GPU: the end of a run, and ``clove score``."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from clove_ssl.atomic import write_text
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import Task
from clove_ssl.tasks.scoring.scores import (
    Scores,
    console_lines,
    describe_spread,
    read_scores,
    write_scores,
)

ScoresByName = dict[str, float]  # such as box_AP50, between 0 and 1


def score_run(path: str | Path) -> ScoresByName:
    """Score the predictions of a finished run, or of several; writes ``scores.json`` anew."""
    run = directory.find(Path(path))
    config = replace(directory.read_finetuning(run), out=run.path)
    with Console() as console:
        if config.runs == 1:
            return _score_again(run, config, console, whole=run)
        for number in range(config.runs):
            console.say(f"run-{number}")
            _score_again(run.repetition(number), config, console, whole=run)
        return summarize_runs(run, config, console)


def check_scorable(
    task: Task, config: FinetuneConfig, run: RunDirectory, console: Console, *, is_one_of_many: bool
) -> None:
    """Refuse what would stop on its way for want of scores; say it where only the end misses them.

    A machine without the tools may train and predict; any other scores its predictions.
    """
    missing = task.why_not_scored()
    if missing and (is_one_of_many or config.evaluation.every is not None):
        raise UserError(
            f"{missing} Without it a run can be scored at its end alone, on another machine: leave "
            "out --runs and --evaluation.every."
        )
    if missing:
        console.warn(
            f"{missing} This run will end with predictions and without scores; for them, here or "
            f"on another machine: clove score {run.path}"
        )


def score_and_write(task: Task, place: RunDirectory, test: Any) -> Scores:
    """Score what lies in ``place`` and write its ``scores.json``."""
    scores = task.score(place.predictions, test)
    write_scores(place.scores, scores)
    return scores


def scores_of(place: RunDirectory) -> ScoresByName:
    """The scores that could be measured, by name."""
    scores = read_scores(place.scores).by_name()
    return {name: value for name, value in scores.items() if not math.isnan(value)}


def say_scores(scores: Scores, console: Console, *, classes: bool) -> None:
    """Say the tables."""
    for line in console_lines(scores, classes=classes):
        console.say(line)


def summarize_runs(whole: RunDirectory, config: FinetuneConfig, console: Console) -> ScoresByName:
    """Mean and standard deviation over runs that differ in their seed; writes ``summary.json``."""
    parts = [whole.repetition(number) for number in range(config.runs)]
    for part in parts:
        if not part.scores.is_file():
            raise UserError(
                f"{part.path} has no scores, because it has not finished. Type: clove resume "
                f"{whole.path}"
            )
    measured = [scores_of(part) for part in parts]
    names = [name for name in measured[0] if all(name in scores for scores in measured)]
    summary = {name: _spread([scores[name] for scores in measured]) for name in names}
    content = {"task": config.task.name, "runs": config.runs, "scores": summary}
    write_text(whole.summary, json.dumps(content, indent=1) + "\n")
    console.say(f"{config.runs} runs of {config.task.name}, mean and standard deviation")
    for name, spread in summary.items():
        console.choice(name, describe_spread(spread))
    return {name: float(spread["mean"]) for name, spread in summary.items()}


def _spread(values: list[float]) -> dict[str, Any]:
    return {"mean": fmean(values), "std": stdev(values), "values": values}


def _score_again(
    run: RunDirectory, config: FinetuneConfig, console: Console, *, whole: RunDirectory
) -> ScoresByName:
    if not run.predictions.is_dir():
        first = f"Remove {run.scores}, then type" if run.scores.is_file() else "Type"
        raise UserError(
            f"{run.path} has no predictions; they are written at the end of a run. {first}: clove "
            f"resume {whole.path}"
        )
    task = config.task.build()
    with console.working("Scoring"):
        scores = score_and_write(task, run, task.read_test(config.data, run.scenes))
    say_scores(scores, console, classes=True)
    console.choice("scores", str(run.scores))
    return scores_of(run)
