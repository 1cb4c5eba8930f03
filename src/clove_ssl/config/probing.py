"""What ``clove probe`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Measure frozen features with a linear classifier per cell, on images with label maps."""

    backbones: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Runs or backbone files; ``random:NAME`` for a network with random weights."""
    data: str = "scenes"
    """``scenes``, or a VOC folder with SegmentationClass masks."""
    test_split: str = "test"
    """List of a VOC folder to score on; its ``train`` list is learned from."""
    size: int = 128
    """Side to which images are resized."""
    stages: tuple[str, ...] = ()
    """Feature maps used together, such as c4 c5; by default the one that the first backbone that
    is not random was trained for."""
    train_images: int = 400
    """Images the classifier learns from, at most."""
    test_images: int = 200
    """Images it is scored on, at most."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0
    """Determines the weights of ``random:`` networks and the split for choosing the penalty."""
