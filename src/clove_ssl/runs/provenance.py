"""``provenance.json``: what made a run, so that its figures can be believed later."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torchvision

from clove_ssl import __version__
from clove_ssl.atomic import write_text
from clove_ssl.runs.directory import RunDirectory


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Software and hardware of this process."""
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


def record_start(run: RunDirectory, facts: dict[str, Any]) -> None:
    """Add one start (the first one or a resume) to the history of a run."""
    history = _read(run.provenance)
    history["starts"].append(
        {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": sys.argv, **facts}
    )
    write_text(run.provenance, json.dumps(history, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"starts": []}
    history: dict[str, Any] = json.loads(path.read_text())
    return history
