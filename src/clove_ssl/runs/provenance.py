"""``provenance.json``: what made a run, so that its numbers can be believed later."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from clove_ssl import __version__
from clove_ssl.atomic import write_text
from clove_ssl.config.json_files import read_json
from clove_ssl.runs.directory import RunDirectory

if TYPE_CHECKING:
    import torch


class Start(TypedDict, total=False):
    """What readers rely on of a start; there is more in it."""

    time: str
    folder: str
    step: int
    processes: int
    device: str
    torch: str
    choices: dict[str, Any]  # a value with its reason each, and more that versions differ in


class Provenance(TypedDict, total=False):
    """The whole file."""

    number: str
    starts: list[Start]
    bad_files: dict[str, str]


SHORTER_SIDE = "shorter_side"
"""The name under which a start of a run keeps the typical shorter side of its images."""

_CPU_MODEL = re.compile(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", re.MULTILINE)
_UNREADABLE = re.compile(r"\S+ \S+ warning cannot read (.*)")


def record_start(
    run: RunDirectory,
    device: torch.device,
    *,
    step: int,
    processes: int,
    choices: Mapping[str, Any] | None = None,
    bad_files: Mapping[str, str] | None = None,
) -> None:
    """Add one start (the first one or a resume) to the history of a run.

    Args:
        run: Its directory.
        device: What this process computes on.
        step: Steps that were done before.
        processes: How many take part.
        choices: What this start has decided.
        bad_files: Unreadable files that the run knows of already, with the reasons.
    """
    history = _read(run.provenance)
    history["starts"].append(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": sys.argv,
            "folder": os.getcwd(),
            "step": step,
            "processes": processes,
            "choices": dict(choices or {}),
            **_environment(device),
        }
    )
    history["bad_files"] = {**history.get("bad_files", {}), **(bad_files or {})}
    _write(run, history)


def record_bad_files(run: RunDirectory, reasons: Mapping[str, str]) -> None:
    """Keep which files could not be read, so that nobody has to look for them in the log."""
    history = _read(run.provenance)
    history["bad_files"] = {**history.get("bad_files", {}), **reasons}
    _write(run, history)


def unreadable_files(run: RunDirectory) -> set[str]:
    """The files that a run could not read; what the log says for runs of earlier versions."""
    history = _read(run.provenance)
    if "bad_files" in history:
        return set(history["bad_files"])
    if not run.log.is_file():
        return set()
    with run.log.open(encoding="utf-8", errors="replace") as log:
        return {found[1] for line in log if (found := _UNREADABLE.match(line))}


def run_number(run: RunDirectory) -> str:
    """What tells a run from all others; empty for those that were started before there was one."""
    return str(_read(run.provenance).get("number", "")) if run.provenance.exists() else ""


def read_starts(run: RunDirectory) -> list[dict[str, Any]]:
    """Every start of a run, the first one and all resumes; none where they were not written."""
    return list(_read(run.provenance)["starts"])


def last_start(run: RunDirectory) -> dict[str, Any]:
    """What is known of the last start of a run; nothing where that was not written down."""
    return next(reversed(read_starts(run)), {})


def starting_folder(run: RunDirectory, out: Path) -> Path | None:
    """Where a run was started: as it was written down, or as its place and its ``out`` tell."""
    first = next(iter(read_starts(run)), {})
    if "folder" in first:
        return Path(first["folder"])
    place = run.path.absolute()
    if not out.is_absolute() and place.parts[-len(out.parts) :] == out.parts and out.parts:
        return Path(*place.parts[: -len(out.parts)])
    return None


def recorded_side(run: RunDirectory) -> int | None:
    """The typical shorter side of the images of a run; runs of earlier versions do not know it."""
    made = last_start(run).get("choices", {}).get(SHORTER_SIDE)
    side = made.get("value") if isinstance(made, dict) else made
    return side if type(side) is int and 0 < side < 2**31 else None


def cpu_name() -> str:
    """The model of this machine's CPU, or its architecture where no model is told."""
    try:
        found = _CPU_MODEL.search(
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        )
    except OSError:  # not a Linux
        found = None
    name = " ".join(found[1].split()) if found else ""
    return name or f"CPU ({platform.processor() or platform.machine()})"


def _environment(device: torch.device) -> dict[str, Any]:
    """Software and hardware of this process."""
    import torch  # late: who reads a run, such as the doctor, may have none that works
    import torchvision

    on_gpu = device.type == "cuda"
    return {
        "clove_ssl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
    }


def _read(path: Path) -> dict[str, Any]:
    """The whole file; a run without one gets its number now."""
    if not path.exists():
        return {"number": secrets.token_hex(4), "starts": []}
    remedy = "Delete it; the run does not need it."
    if not isinstance(read_json(path, Any, remedy=remedy), dict):  # there is nothing in it
        return {"starts": []}
    history = read_json(path, Provenance, remedy=remedy)
    return {"starts": [], **cast(dict[str, Any], history)}


def _write(run: RunDirectory, history: Mapping[str, Any]) -> None:
    write_text(run.provenance, json.dumps(history, indent=1) + "\n")
