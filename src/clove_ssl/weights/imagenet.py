"""Torchvision's own ImageNet weights, from where torch keeps what it has downloaded."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from clove_ssl.errors import UserError

IMAGENET = "imagenet"


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
