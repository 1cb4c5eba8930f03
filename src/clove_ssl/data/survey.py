"""A quick look at some images of a source, before a run decides what to do with them."""

from __future__ import annotations

from statistics import median

import numpy as np

from clove_ssl.data.decode import DecodeError, image_size
from clove_ssl.data.sources import ImageSource

_LOOKED_AT = 16


def typical_side(source: ImageSource, count: int = _LOOKED_AT) -> int | None:
    """The median of the shorter sides of some images, evenly spread; None if none can be read."""
    places = np.linspace(0, len(source) - 1, min(count, len(source))).astype(int)
    sides = [side for place in places if (side := _shorter_side(source, int(place)))]
    return int(median(sides)) if sides else None


def _shorter_side(source: ImageSource, index: int) -> int | None:
    """In pixels, from the header; what cannot be read is the run's business, not ours."""
    try:
        return min(image_size(source.read(index)))
    except (DecodeError, OSError):
        return None
