"""``probes.json``: what ``clove probe`` found about a run, one entry per score."""

from __future__ import annotations

import json
from typing import Any

from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory

Entries = list[dict[str, Any]]


def read_probes(run: RunDirectory) -> Entries:
    """The entries that a run has; those of the first version come in today's form."""
    if not run.probes.is_file():
        return []
    try:
        return [_current(entry) for entry in json.loads(run.probes.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{run.probes} is damaged: {type(error).__name__}, {error}. Delete it and run the "
            f"probe again: clove probe {run.path}"
        ) from None


def _current(entry: Any) -> dict[str, Any]:
    """An entry that can be drawn; the first version had only the mIoU of the linear probe."""
    if "value" not in entry:
        entry = {"title": "linear mIoU", "value": entry["miou"], "is_share": True, **entry}
    number, interval = float(entry["value"]), [float(end) for end in entry.get("interval") or ()]
    if len(interval) not in (0, 2):
        raise ValueError(f"an interval with {len(interval)} ends")
    texts = {key: str(entry[key]) for key in ("backbone", "data", "title")}
    shown = {"is_share": bool(entry.get("is_share")), "value": number, "interval": interval or None}
    return {**entry, **texts, **shown}
