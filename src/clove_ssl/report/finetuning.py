"""What a report says about fine-tuning runs: scores side by side, and how they were found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from clove_ssl.config.json_files import read_json
from clove_ssl.errors import counted
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
    """One score of one run."""

    text: str
    is_best: bool = False  # of all runs in the table


@dataclass(frozen=True)
class ScoreRow:
    """All scores of one run."""

    run: ReportedRun
    cells: Sequence[Cell]


@dataclass(frozen=True)
class ScoreBoard:
    """One kind of score of one task, with a row for every run that has it."""

    title: str
    note: str
    columns: Sequence[str]
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
    columns = list(dict.fromkeys(column for _, _, table in members for column in table.summary))
    found = [[table.summary.get(name, math.nan) for name in columns] for _, _, table in members]
    best = [_best(values) for values in zip(*found, strict=True)]
    rows = [
        ScoreRow(
            run,
            [Cell(_percent(each), each == top) for each, top in zip(values, best, strict=True)],
        )
        for (run, _, _), values in zip(members, found, strict=True)
    ]
    _, scores, table = members[0]
    note = f"{table.rule}, {counted(scores.images, 'image')}"
    return ScoreBoard(f"{task}: {name}", note, columns, rows, _classes(members))


def _best(scores: Sequence[float]) -> float | None:
    """The best score of several runs; nothing where there is one run only."""
    known = [score for score in scores if not math.isnan(score)]
    return max(known, default=None) if len(scores) > 1 else None


def _classes(members: Sequence[tuple[ReportedRun, Scores, ScoreTable]]) -> Rows:
    """All scores by class of one run, or the first score by class of several."""
    if len(members) == 1:
        table = members[0][2]
        return class_rows(table) if table.by_class else ()
    tables = [table for _, _, table in members]
    names = list(dict.fromkeys(name for table in tables for name in table.by_class))
    if not names:
        return ()
    first = next(iter(next(table.by_class[names[0]] for table in tables if table.by_class)))
    head = [f"{first} by class", *(run.name for run, _, _ in members)]
    rows = [
        [name, *(_percent(table.by_class.get(name, {}).get(first, math.nan)) for table in tables)]
        for name in names
    ]
    return [head, *rows]


def _repeated_board(run: ReportedRun) -> Iterator[ScoreBoard]:
    """The scores of runs that differ in their seed alone."""
    if run.finetuning is None or run.finetuning.runs == 1 or not run.run.summary.is_file():
        return
    content = read_summary(run.run)
    scores = content["scores"]
    cells = [Cell(describe_spread(spread)) for spread in scores.values()]
    single = [
        [name.replace("_", " "), *(f"{100 * value:.2f}" for value in spread["values"])]
        for name, spread in scores.items()
    ]
    head = ["score", *(f"run-{number}" for number in range(content["runs"]))]
    yield ScoreBoard(
        f"{run.finetuning.task.name}: {content['runs']} runs",
        "Mean +- standard deviation; the runs differ in their seed alone.",
        [name.replace("_", " ") for name in scores],
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
