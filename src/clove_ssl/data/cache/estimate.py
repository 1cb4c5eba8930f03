"""How much memory all photos of a source take once they are decoded, from the headers of some."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from clove_ssl.data.decode import DecodeError, image_size
from clove_ssl.data.sources import ImageSource

MOST_SAMPLES, MOST_REMOTE_SAMPLES = 256, 32  # behind a URL each of them is a request
_FEWEST_SAMPLES = 8
_EVERY = 16  # of a small source no more than each sixteenth is looked at, since runs are short
_MARGIN = 1.15  # the mean of 256 sizes is rarely off by more than a few per cent
_ROOM_FOR_FEW = 2**24  # bytes; where there are few photos, one can be much larger than all others


@dataclass(frozen=True)
class DecodedSize:
    """An estimate of bytes, and the photos it comes from."""

    bytes: int
    samples: int
    left_out: int = 0
    """Samples that would not stay."""

    @property
    def with_margin(self) -> int:
        """Bytes that are enough unless the samples were far from typical."""
        return int(_MARGIN * self.bytes) + _ROOM_FOR_FEW


def estimate_decoded_size(
    source: ImageSource,
    *,
    max_pixels: int,
    stays: Callable[[int, int], bool],
    most_samples: int = MOST_SAMPLES,
) -> DecodedSize:
    """What the photos take as 8-bit RGB whose height and width say that they will stay.

    Files that cannot be read count like the others.
    """
    count = len(source)
    samples = min(count, most_samples, max(_FEWEST_SAMPLES, count // _EVERY))
    sizes = []
    for index in np.linspace(0, count - 1, samples).astype(np.int64).tolist():
        # Unreadable ones are named when their turn comes.
        with suppress(DecodeError, OSError, MemoryError):
            sizes.append(image_size(source.read(index), max_pixels=max_pixels))
    staying = [3 * height * width for height, width in sizes if stays(height, width)]
    mean = sum(staying) / len(sizes) if sizes else 0.0
    return DecodedSize(int(mean * count), len(sizes), len(sizes) - len(staying))
