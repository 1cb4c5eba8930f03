"""Pictures whose pixels are numbers: masks of classes and instances, read within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.decode import MAX_PIXELS, DecodeError, load_whole, open_picture
from clove_ssl.data.whole_files import read_whole


def mask_file_numbers(path: Path, *, convert: str | None = None) -> tuple[str, NDArray[Any]]:
    """The mode of a mask file and its numbers; ``OSError`` where it is no such file.

    ``convert`` is the mode that its pixels are brought into.
    """
    try:
        return mask_numbers(read_whole(path), convert=convert)
    except DecodeError as error:
        raise OSError(str(error)) from None


def mask_numbers(data: bytes, *, convert: str | None = None) -> tuple[str, NDArray[Any]]:
    """The same for a file that was read already; ``DecodeError`` where it is no mask."""
    picture = open_picture(data)
    try:
        load_whole(picture, data)
        shown = picture.convert(convert) if convert else picture
        return picture.mode, np.array(shown)
    except Exception as error:  # Pillow has many words for a damaged file, and bombs
        raise DecodeError(str(error) or type(error).__name__) from None


def check_pixels(width: int, height: int) -> None:
    """Refuse a size that no labelled image has; a file of a few bytes can claim any."""
    if width * height > MAX_PIXELS:
        raise DecodeError(f"{width} x {height} pixels are more than {MAX_PIXELS:,}")
