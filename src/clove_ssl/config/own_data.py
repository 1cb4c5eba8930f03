"""What ``clove data`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from clove_ssl.config.ranges import Range, Ranged, Seed


@dataclass(frozen=True, kw_only=True)
class DataConfig(Ranged):
    """Show what is in a folder or file of labelled images, without training on it."""

    data: Annotated[Path, tyro.conf.Positional]
    """Folder or file of COCO, VOC, YOLO or LabelMe labels, or of masks."""
    out: Path | None = None
    """Folder for sheets of labelled examples, one for every split."""
    pictures: Annotated[int, Range(1, 300)] = 12
    """Examples on a sheet."""
    validation_share: Annotated[float, Range(0, 0.9, above=True)] = 0.2
    """Share of the images that a model would be judged by, where the data have no split."""
    split_seed: Seed = 0
    """Decides which images these are, together with their names."""
