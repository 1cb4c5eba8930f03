"""``summary.json``: the scores of several fine-tuning runs that differ in their seed alone."""

from __future__ import annotations

from typing import Any, TypedDict

from clove_ssl.config.json_files import read_json
from clove_ssl.runs.directory import RunDirectory


class Spread(TypedDict):
    """One score over all runs."""

    mean: float
    std: float
    values: list[float]


class Summary(TypedDict):
    """The whole file."""

    runs: int
    scores: dict[str, Spread]


class _OldSummary(TypedDict):
    """The file of older runs, in which the scores had another name."""

    runs: int
    figures: dict[str, Spread]


def read_summary(run: RunDirectory) -> Summary:
    """What the runs of a folder have found together."""
    remedy = f"Score the runs again: clove score {run.path}"
    keys = read_json(run.summary, dict[str, Any], remedy=remedy)
    if "scores" not in keys and "figures" in keys:
        old: _OldSummary = read_json(run.summary, _OldSummary, remedy=remedy)
        return Summary(runs=old["runs"], scores=old["figures"])
    content: Summary = read_json(run.summary, Summary, remedy=remedy)
    return content
