"""Small photos in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def save_photos(folder: Path, count: int) -> None:
    """Write different pictures of 80 by 64 pixels as JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 80, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.jpg")
