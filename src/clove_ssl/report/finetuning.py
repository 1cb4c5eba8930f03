"""What a report says about fine-tuning runs: scores side by side, and how they were found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from clove_ssl.config.json_files import read_json
from clove_ssl.report.runs import ReportedRun
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.summary_file import read_summary
from clove_ssl.tasks.scoring.scores import (
    Scores,
    ScoreTable,
    class_rows,
    describe_spread,
    read_scores,
)

Rows = Sequence[Sequence[str]]
NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """One figure of one run."""

    text: str
    is_best: bool = False  # of all runs in the table


@dataclass(frozen=True)
class ScoreRow:
    """All figures of one run."""

    run: ReportedRun
    cells: Sequence[Cell]


@dataclass(frozen=True)
class ScoreBoard:
    """One kind of score of one task, with a row for every run that has it."""

    title: str
    note: str
    figures: Sequence[str]
    rows: Sequence[ScoreRow]
    by_class: Rows


class _SelfCheck(TypedDict, total=False):
    notes: list[str]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Differences:
    """How a run differs from its published protocol, and what it found at its start."""

    run: ReportedRun
    differences: Sequence[str]
    notes: Sequence[str]
    facts: dict[str, str]
    is_published: bool  # else there is no protocol to differ from


def score_boards(runs: Sequence[ReportedRun]) -> list[ScoreBoard]:
    """The scores of fine-tuning runs, those of one task and kind in one table."""
    found: dict[tuple[str, str], list[tuple[ReportedRun, Scores, ScoreTable]]] = {}
    for run in runs:
        if run.finetuning is not None and run.finetuning.runs == 1 and run.run.scores.is_file():
            scores = read_scores(run.run.scores)
            for table in scores.tables:
                key = (run.finetuning.task.name, table.name)
                found.setdefault(key, []).append((run, scores, table))
    return [_board(task, name, members) for (task, name), members in found.items()] + [
        board for run in runs for board in _repeated_board(run)
    ]


def protocol_differences(run: ReportedRun) -> Differences | None:
    """What a fine-tuning run wrote down at its start."""
    if run.finetuning is None:
        return None
    check = _self_check(run.run)
    facts = {str(name): str(value) for name, value in check.get("facts", {}).items()}
    return Differences(
        run,
        run.finetuning.differences(),
        check.get("notes", []),
        facts,
        is_published=run.finetuning.task.is_published,
    )


def _board(
    task: str, name: str, members: Sequence[tuple[ReportedRun, Scores, ScoreTable]]
) -> ScoreBoard:
    figures = list(dict.fromkeys(figure for _, _, table in members for figure in table.summary))
    best = {
        figure: max(
            (table.summary.get(figure, -math.inf) for _, _, table in members), default=math.inf
        )
        for figure in figures
    }
    several = len(members) > 1
    rows = [
        ScoreRow(
            run,
            [
                _cell(table.summary.get(figure), is_best=several and best[figure])
                for figure in figures
            ],
        )
        for run, _, table in members
    ]
    _, scores, table = members[0]
    images = "1 image" if scores.images == 1 else f"{scores.images:,} images"
    return ScoreBoard(
        f"{task}: {name}", f"{table.rule}, {images}", figures, rows, _classes(members)
    )


def _cell(value: float | None, *, is_best: float | bool) -> Cell:
    """A figure; ``is_best`` is the best of all runs, or False where there is one run only."""
    if value is None:
        return Cell(NOTHING)
    return Cell(_percent(value), is_best is not False and value == is_best)


def _classes(members: Sequence[tuple[ReportedRun, Scores, ScoreTable]]) -> Rows:
    """All figures by class of one run, or the first figure by class of several."""
    if len(members) == 1:
        table = members[0][2]
        return class_rows(table) if table.by_class else ()
    tables = [table for _, _, table in members]
    names = list(dict.fromkeys(name for table in tables for name in table.by_class))
    if not names:
        return ()
    figure = next(iter(next(table.by_class[names[0]] for table in tables if table.by_class)))
    head = [f"{figure} by class", *(run.name for run, _, _ in members)]
    rows = [
        [name, *(_percent(table.by_class.get(name, {}).get(figure, math.nan)) for table in tables)]
        for name in names
    ]
    return [head, *rows]


def _repeated_board(run: ReportedRun) -> Iterator[ScoreBoard]:
    """The scores of runs that differ in their seed alone."""
    if run.finetuning is None or run.finetuning.runs == 1 or not run.run.summary.is_file():
        return
    content = read_summary(run.run)
    figures = content["figures"]
    cells = [Cell(describe_spread(spread)) for spread in figures.values()]
    single = [
        [name.replace("_", " "), *(f"{100 * value:.2f}" for value in spread["values"])]
        for name, spread in figures.items()
    ]
    head = ["figure", *(f"run-{number}" for number in range(content["runs"]))]
    yield ScoreBoard(
        f"{run.finetuning.task.name}: {content['runs']} runs",
        "Mean +- standard deviation; the runs differ in their seed alone.",
        [name.replace("_", " ") for name in figures],
        [ScoreRow(run, cells)],
        [head, *single],
    )


def _percent(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{100 * value:.2f}"


def _self_check(run: RunDirectory) -> _SelfCheck:
    if not run.self_check.is_file():
        return {}
    content: _SelfCheck = read_json(run.self_check, _SelfCheck, remedy="Delete it, then try again.")
    return content
