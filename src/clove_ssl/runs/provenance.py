"""``provenance.json``: what made a run, so that its figures can be believed later."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clove_ssl import __version__
from clove_ssl.atomic import write_text
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory

if TYPE_CHECKING:
    import torch


def record_start(run: RunDirectory, device: torch.device, *, step: int, processes: int) -> None:
    """Add one start (the first one or a resume) to the history of a run."""
    history = _read(run.provenance)
    history["starts"].append(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": sys.argv,
            "step": step,
            "processes": processes,
            **_environment(device),
        }
    )
    write_text(run.provenance, json.dumps(history, indent=1) + "\n")


def run_number(run: RunDirectory) -> str:
    """What tells a run from all others; empty for those that were started before there was one."""
    return str(_read(run.provenance).get("number", "")) if run.provenance.exists() else ""


def last_start(run: RunDirectory) -> dict[str, Any]:
    """What is known of the last start of a run; nothing where that was not written down."""
    starts: list[dict[str, Any]] = _read(run.provenance)["starts"]
    return starts[-1] if starts else {}


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
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.machine(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
    }


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"number": secrets.token_hex(4), "starts": []}
    try:
        history: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}. Delete it; the run does without.") from None
    return history
