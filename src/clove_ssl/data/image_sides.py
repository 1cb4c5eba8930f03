"""How large the images of a source are, from the headers of a few of them."""

from __future__ import annotations

import io
from statistics import median

from PIL import Image

from clove_ssl.data.sources import ImageSource

SAMPLE = 16
"""Images that are looked at; reading all of a large source would take hours."""


def typical_shorter_side(source: ImageSource) -> int | None:
    """The shorter side in pixels of the middle one of some images; none if none can be read."""
    side: int | None = getattr(source, "size", None)  # generated scenes are all of one size
    if side is not None:
        return side
    count = min(SAMPLE, len(source))
    sides = [_shorter_side(source, index * len(source) // count) for index in range(count)]
    known = [side for side in sides if side is not None]
    return round(median(known)) if known else None


def _shorter_side(source: ImageSource, index: int) -> int | None:
    try:
        with Image.open(io.BytesIO(source.read(index))) as image:
            return min(image.size)
    except Exception:  # what is wrong with a file is said where it is trained on
        return None
