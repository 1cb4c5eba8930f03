"""Find the file that a user means by a path, and what its surroundings tell about it.

A path may be a run, finished or not, one of its checkpoints, a folder in the style
of Hugging Face, or a file of any program.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from clove_ssl.backbones.build import TIMM_PREFIX
from clove_ssl.config import files
from clove_ssl.config.bases import Branch
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory, newest_intact, not_exported, read_config

HUB_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Origin:
    """A file with weights, and what is known about it beforehand."""

    path: Path
    network: BackboneConfig | None = None  # where a run says what it trains
    branch: Branch | None = None  # which one a run hands out
    hint: str = ""  # a network of timm that a folder names; used when the tensors do not tell


def locate(path: Path) -> Origin:
    """The file behind a path."""
    if path.is_file():
        return _of_file(path)
    if not path.exists():
        raise UserError(
            f"{path} does not exist. Give a run directory, a backbone.safetensors or a released "
            "checkpoint."
        )
    run = RunDirectory(path)
    if run.backbone.is_file():
        return Origin(run.backbone)
    if (path / HUB_WEIGHTS).is_file():
        return Origin(path / HUB_WEIGHTS, hint=_timm_name(path / "config.json"))
    trained = read_config(run) if run.config.is_file() else None
    if isinstance(trained, FinetuneConfig):
        raise not_exported(run, run.backbone)
    checkpoint = newest_intact(run.checkpoints)
    if checkpoint is None or trained is None:
        raise UserError(
            f"{path} holds no weights: no export/backbone.safetensors, no {HUB_WEIGHTS} and no "
            f"intact checkpoint of a run. If it is a run, type: clove resume {path}"
        )
    return _of_run(trained, checkpoint.path)


def _of_file(path: Path) -> Origin:
    run = RunDirectory(path.parent.parent)
    if path.parent == run.checkpoints and run.config.is_file():
        return _of_run(files.load(PretrainConfig, run.config), path)
    return Origin(path)


def _of_run(config: PretrainConfig, checkpoint: Path) -> Origin:
    return Origin(checkpoint, network=config.backbone, branch=config.method.exported_branch)


def _timm_name(config: Path) -> str:
    """The network that a folder's ``config.json`` names, if it is readable and does."""
    try:
        named = json.loads(config.read_text())["architecture"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return f"{TIMM_PREFIX}{named}" if isinstance(named, str) else ""
