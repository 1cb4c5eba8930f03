"""In which options runs differ: their config files side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clove_ssl.config.files import read_values
from clove_ssl.report.runs import ReportedRun

NOTHING = "–"
_UNIMPORTANT = frozenset({"out"})

Row = tuple[str, list[str]]
"""An option, and its value in every run."""


def config_differences(runs: Sequence[ReportedRun]) -> tuple[list[Row], list[Row]]:
    """The options that differ, in the order of the files: those that all runs have, the others."""
    tables = [dict(_flat(read_values(run.run.config))) for run in runs]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = [(key, [_text(table, key) for table in tables]) for key in keys]
    different = [(key, values) for key, values in rows if len(set(values)) > 1]
    common = [row for row in different if all(row[0] in table for table in tables)]
    return common, [row for row in different if row not in common]


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif prefix or key not in _UNIMPORTANT:
            yield f"{prefix}{key}", value


def _text(table: dict[str, Any], key: str) -> str:
    if key not in table:
        return NOTHING
    value = table[key]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
