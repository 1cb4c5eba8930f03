"""``probes.json``: what ``clove probe`` found, one entry per score; every run may have one.

An entry says whose weights it is about by their hash, since folders of different runs can have one
name, and a run that went on has other weights than those that were probed before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from clove_ssl.config.json_files import read_json
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory

Entries = list[dict[str, Any]]
RANDOM = "random:"
SAME_IMAGES = (
    *("figure", "data", "size", "stages", "seed"),
    *("train", "test_split", "train_images", "test_images"),
)
"""What scores have in common that may be compared; what is left out stands for the usual value."""
_LARGEST_HEADER = 2**24  # bytes; what is longer is no file of ours


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
    weights: str
    test_split: str | None
    test_images: int | None


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


def entries_about(run: RunDirectory, entries: Entries) -> tuple[Entries, Entries]:
    """Entries about the weights that a run hands out now, wherever it lies, and about earlier ones.

    Earlier are those that it had before it went on.
    """
    exported = _exported_weights(run)
    current: Entries = []
    earlier: Entries = []
    for entry in entries:
        if str(entry["backbone"]).startswith(RANDOM):
            continue
        is_named = _is_named_like(entry, run)
        is_hashed = exported is not None and entry.get("weights") is not None
        if entry["weights"] == exported if is_hashed else is_named:
            current.append(entry)
        elif is_named:
            earlier.append(entry)
    return current, earlier


def _is_named_like(entry: Mapping[str, Any], run: RunDirectory) -> bool:
    """Whether the name of an entry is that of a run, which may have been moved."""
    named, own = Path(entry["backbone"]), (run.path.resolve(), run.backbone.resolve())
    if named.exists():
        return named.resolve() in own
    return named.name in [path.name for path in own]


def _exported_weights(run: RunDirectory) -> str | None:
    """The hash that stands in the file of the exported backbone, if there is one."""
    try:
        with run.backbone.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LARGEST_HEADER)))
        return str(header["__metadata__"]["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        return None  # whoever loads the file says what is wrong with it
