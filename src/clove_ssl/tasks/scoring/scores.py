"""Scores of a set of predictions: a summary, a table by class, curves; and their file.

Values lie between 0 and 1 here and in ``scores.json``; people read them in percent. A score
that nothing could be measured for is NaN here and null in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.config.json_files import read_json
from clove_ssl.text_tables import in_columns

_NOTHING = "–"


@dataclass(frozen=True)
class Curve:
    """Precision at growing recall, for an overlap of one half."""

    recall: tuple[float, ...]
    precision: tuple[float, ...]


@dataclass(frozen=True)
class ScoreTable:
    """What one rule says about the predictions."""

    name: str  # what is judged: box, mask, keypoints, pixels
    rule: str  # how, for people
    summary: dict[str, float]
    by_class: dict[str, dict[str, float]]
    curves: dict[str, Curve] = field(default_factory=dict)  # by class, where there is one


@dataclass(frozen=True)
class Scores:
    """All scores of a set of predictions; the first table is the one that is reported."""

    tables: tuple[ScoreTable, ...]
    images: int

    def by_name(self) -> dict[str, float]:
        """Every score of every summary by a name such as ``box_AP50``."""
        return {
            f"{table.name}_{name}": value
            for table in self.tables
            for name, value in table.summary.items()
        }

    @property
    def headline(self) -> tuple[str, float]:
        """The first score of the first table."""
        name, value = next(iter(self.by_name().items()))
        return name, value


def write_scores(path: Path, scores: Scores) -> None:
    """Write ``scores.json``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(_without_nan(asdict(scores)), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise unwritable("Scores", path, error) from None


class _CurveContent(TypedDict):
    recall: list[float]
    precision: list[float]


class _TableContent(TypedDict):
    name: str
    rule: str
    summary: dict[str, float | None]
    by_class: dict[str, dict[str, float | None]]
    curves: dict[str, _CurveContent]


class _ScoresContent(TypedDict):
    tables: list[_TableContent]
    images: int


def read_scores(path: Path) -> Scores:
    """Read what :func:`write_scores` wrote."""
    remedy = f"Score the run again: clove score {path.parent}"
    content: _ScoresContent = read_json(
        path, _ScoresContent, remedy=remedy, otherwise="no file of scores"
    )
    return Scores(tuple(map(_table, content["tables"])), content["images"])


def console_lines(scores: Scores, *, classes: bool = False) -> Iterator[str]:
    """All tables for a terminal, in columns and in percent."""
    for table in scores.tables:
        yield f"{table.name}: {table.rule}, {scores.images:,} images"
        yield from _indented(summary_rows(table))
        if classes and table.by_class:
            yield from _indented(class_rows(table))


def _indented(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"  {line}" for line in in_columns(rows, side="right"))


def summary_rows(table: ScoreTable) -> list[list[str]]:
    """Names of scores, and the scores in percent."""
    return [list(table.summary), [_percent(value) for value in table.summary.values()]]


def class_rows(table: ScoreTable) -> list[list[str]]:
    """A row of scores for every class, below their names."""
    columns = list(next(iter(table.by_class.values()), {}))
    rows = [
        [name, *(_shown(column, values.get(column, math.nan)) for column in columns)]
        for name, values in table.by_class.items()
    ]
    return [["class", *columns], *rows]


def describe_spread(spread: Mapping[str, Any]) -> str:
    """Mean and standard deviation over runs, in percent."""
    return f"{100 * spread['mean']:.2f} +- {100 * spread['std']:.2f}"


def _shown(column: str, value: float) -> str:
    return f"{value:.0f}" if column == "objects" and value == value else _percent(value)


def _percent(value: float) -> str:
    return _NOTHING if math.isnan(value) else f"{100 * value:.2f}"


def _table(content: _TableContent) -> ScoreTable:
    return ScoreTable(
        name=content["name"],
        rule=content["rule"],
        summary=_numbers(content["summary"]),
        by_class={name: _numbers(values) for name, values in content["by_class"].items()},
        curves={
            name: Curve(tuple(curve["recall"]), tuple(curve["precision"]))
            for name, curve in content["curves"].items()
        },
    )


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in values.items()}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
