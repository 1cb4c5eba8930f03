"""``probes.json``: what ``clove probe`` found, one entry per score; every run may have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from clove_ssl.config.json_files import read_json
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory

Entries = list[dict[str, Any]]


class Entry(TypedDict, total=False):
    """What readers rely on of an entry; all but the first three may be absent."""

    backbone: str
    data: str
    title: str
    value: float
    miou: float
    interval: list[float] | None
    chance: float | None
    accuracy: float
    is_share: bool
    stages: list[str]
    size: int


def read_probes(run: RunDirectory) -> Entries:
    """The entries that a run has."""
    remedy = f"Delete it and run the probe again: clove probe {run.path}"
    return read_entries(run.probes, remedy=remedy)


def read_entries(file: Path, *, remedy: str) -> Entries:
    """The entries of a file, none if it does not exist; old ones come in today's form."""
    if not file.is_file():
        return []
    found: Entries = read_json(file, list[Entry], remedy=remedy)
    try:
        return [_current(entry) for entry in found]
    except (ValueError, KeyError) as error:
        raise UserError(f"{file} is damaged: {error}. {remedy}") from None


def _current(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry that can be drawn; the first version had only the mIoU of the linear probe."""
    if "value" not in entry:
        entry = {"title": "linear mIoU", "value": entry["miou"], "is_share": True, **entry}
    interval = entry.get("interval") or []
    if len(interval) not in (0, 2):
        raise ValueError(f"an interval with {len(interval)} ends")
    texts = {key: entry[key] for key in ("backbone", "data", "title")}
    return {"is_share": False, **entry, **texts, "interval": interval or None}
