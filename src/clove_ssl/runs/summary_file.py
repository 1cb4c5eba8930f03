"""``summary.json``: the scores of several fine-tuning runs that differ in their seed alone."""

from __future__ import annotations

from typing import TypedDict

from clove_ssl.config.json_files import read_json
from clove_ssl.runs.directory import RunDirectory


class Spread(TypedDict):
    """One figure over all runs."""

    mean: float
    std: float
    values: list[float]


class Summary(TypedDict):
    """The whole file."""

    runs: int
    figures: dict[str, Spread]


def read_summary(run: RunDirectory) -> Summary:
    """What the runs of a folder have found together."""
    remedy = f"Score the runs again: clove score {run.path}"
    content: Summary = read_json(run.summary, Summary, remedy=remedy)
    return content
