"""The smallest scenes there are: two textures of the built-in scenes side by side, in grey.

With one brightness for all of them, nothing but the texture tells cells apart,
and a network of a few thousand weights learns that within two hundred steps.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.scenes import textures
from clove_ssl.data.scenes.numbers import Draws, Field, heading
from clove_ssl.data.scenes.shapes import Patch

TEXTURES = (
    *(textures.stripes, textures.spots, textures.bricks),
    *(textures.foliage, textures.marble, textures.checks),
)
DARK, BRIGHT = 70, 190
PERIODS = 0.3  # share of the image that has the periods of one unit of a texture


class Mosaics:
    """A source of images, and their labels for the dense probe."""

    class_names = tuple(texture.__name__ for texture in TEXTURES)

    def __init__(self, count: int, *, size: int, seed: int) -> None:
        self._drawn = [_draw(Draws(seed, index), size) for index in range(count)]

    def __len__(self) -> int:
        return len(self._drawn)

    def name(self, index: int) -> str:
        return f"mosaic {index}"

    def read(self, index: int) -> bytes:
        """The image as a binary PPM file."""
        image, _ = self._drawn[index]
        return b"P6\n%d %d\n255\n" % image.shape[1::-1] + image.tobytes()

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        image, labels = self._drawn[index]
        return torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(labels)

    def main_class(self, index: int) -> int:
        """The texture that covers most of an image."""
        return int(np.bincount(self._drawn[index][1].ravel()).argmax())


def _draw(draws: Draws, size: int) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 3) and its labels (H, W), both uint8."""
    first = draws.integer(0, len(TEXTURES) - 1)
    second = (first + draws.integer(1, len(TEXTURES) - 1)) % len(TEXTURES)
    mixes = [TEXTURES[label](_patch(draws, size), draws) for label in (first, second)]
    across, down = _coordinates(draws, size)
    cosine, sine = heading(draws.unit())
    side = across * cosine + down * sine > 0  # (H, W)
    grey = np.where(side, *mixes) * (BRIGHT - DARK) + DARK
    image = np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    return image, np.where(side, first, second).astype(np.uint8)


def _patch(draws: Draws, size: int) -> Patch:
    """Turned coordinates for a texture that fills the whole image."""
    across, down = _coordinates(draws, size)
    cosine, sine = heading(draws.unit())
    x, y = across * cosine + down * sine, down * cosine - across * sine
    return Patch(slice(size), slice(size), x, y, PERIODS * size, (across, down))


def _coordinates(draws: Draws, size: int) -> tuple[Field, Field]:
    """(1, W) and (H, 1) around a point near the middle."""
    middles = np.arange(size, dtype=np.float32) + 0.5
    across, down = (
        (middles - size * draws.uniform(0.35, 0.65)) / (PERIODS * size) for _ in range(2)
    )
    return across[None, :], down[:, None]
