"""Find the file that a user means by a path, and what its surroundings tell about it.

A path may be a run, finished or not, one of its checkpoints, a folder in the style
of Hugging Face, or a file of any program. One word, imagenet, is a file of torchvision.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clove_ssl.backbones.build import TIMM_PREFIX
from clove_ssl.config.bases import Branch
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import BackboneConfig, PretrainConfig
from clove_ssl.config.regular_files import read_regular
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import (
    RunDirectory,
    list_checkpoints,
    newest_intact,
    not_exported,
    read_config,
)

LARGEST_CONFIG = 2**20  # bytes; what is larger is no config
IMAGENET = "imagenet"
"""Said instead of a path: torchvision's own weights, from where torch keeps its downloads."""
HUB_WEIGHTS = "model.safetensors"
HUB_FILES = (HUB_WEIGHTS, "pytorch_model.bin")
"""Weights of a folder in the style of Hugging Face; older ones have a pickle."""


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
    for name in HUB_FILES:
        if (path / name).is_file():
            return _of_folder(path, name)
    trained = read_config(run) if run.config.is_file() else None
    if isinstance(trained, FinetuneConfig):
        raise not_exported(run, run.backbone)
    checkpoint = newest_intact(run.checkpoints)
    if checkpoint is None or trained is None:
        known = ", ".join(("export/backbone.safetensors", *HUB_FILES))
        raise UserError(
            f"{path} holds no weights: none of {known}, and no intact checkpoint of a "
            f"run. If it is a run, type: clove resume {path}"
        )
    return _of_run(trained, checkpoint.path)


def _of_file(path: Path) -> Origin:
    folder = path.absolute().parent  # in the folder of checkpoints itself, a name is all of a path
    run = RunDirectory(folder.parent)
    if folder != run.checkpoints or not run.config.is_file():
        return Origin(path)
    try:
        trained = read_config(run)
    except UserError:
        if any(own.path.name == path.name for own in list_checkpoints(folder)):
            raise
        return Origin(path)  # of another program, which has such a folder and such a config, too
    if isinstance(trained, FinetuneConfig):
        raise UserError(
            f"{path} is a checkpoint of a fine-tuning run, which hands out its backbone when it "
            f"has finished. Give the run: {run.path}"
        )
    return _of_run(trained, path)


def _of_run(config: PretrainConfig, checkpoint: Path) -> Origin:
    return Origin(checkpoint, network=config.backbone, branch=config.method.exported_branch)


def _of_folder(folder: Path, weights: str) -> Origin:
    """A folder in the style of Hugging Face, of timm or of transformers."""
    config = _read_config(folder / "config.json")
    if config.get("downsample_in_bottleneck") is True:
        raise UserError(
            f"{folder} holds a ResNet of transformers whose blocks stride in their first "
            "convolution (downsample_in_bottleneck), so its tensors would fit and its features be "
            "wrong. Expected one that strides in the second, such as microsoft/resnet-50."
        )
    named = config.get("architecture")
    hint = f"{TIMM_PREFIX}{named}" if isinstance(named, str) else ""
    return Origin(folder / weights, hint=hint)


def _read_config(path: Path) -> dict[str, Any]:
    """The content of a ``config.json``, if there is a readable one."""
    try:
        content = json.loads(read_regular(path, most=LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_imagenet(weights: Path) -> bool:
    """Whether the word is meant and not a file or folder of that name."""
    return str(weights) == IMAGENET and not weights.exists()


def imagenet_file(network: str) -> Path:
    """The file with the first ImageNet weights of a torchvision network; downloaded if need be."""
    from torchvision.models import get_model_weights

    try:
        weights = get_model_weights(network)
    except ValueError:
        raise UserError(
            f"torchvision has no ImageNet weights for {network}. Give --backbone.weights a file, "
            "or --backbone.name one of torchvision's networks, such as resnet50."
        ) from None
    chosen = getattr(weights, "IMAGENET1K_V1", None) or next(iter(weights))
    file = Path(torch.hub.get_dir(), "checkpoints", os.path.basename(chosen.url))
    if not file.is_file():
        _download(chosen.url, file)
    return file


def _download(url: str, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), progress=False)
    except OSError as error:
        raise UserError(
            f"The ImageNet weights are not on this machine and cannot be fetched: {error}. Put "
            f"{file.name} of torchvision at {file}, or leave out --backbone.weights."
        ) from None
