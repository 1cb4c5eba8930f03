"""The size that annotations give an image, against that of its file.

A wrong size makes good boxes look faulty. So files are asked before boxes are blamed; only their
first bytes are read.
"""

from __future__ import annotations

from pathlib import Path

from PIL import ExifTags, Image

from clove_ssl.errors import UserError

_TURNED = (5, 6, 7, 8)  # EXIF orientations whose upright image swaps width and height


def check_size(image: Path, size: tuple[int, int], *, origin: str) -> None:
    """Refuse a width and height that are not those of the file; ``origin`` says who gives them.

    Files that cannot be read pass; the loader says what is wrong with them.
    """
    known = _sizes(image)
    if known and size not in known:
        width, height = known[-1]
        raise UserError(
            f"{origin} gives {image} {size[0]} x {size[1]} pixels, but the file has {width} x "
            f"{height}. Expected the size of the file, which boxes are judged by: correct width "
            "and height, or give the images that the annotations were made for."
        )


def _sizes(image: Path) -> list[tuple[int, int]]:
    """Width and height as stored and, last, as shown; nothing for a file that is no image."""
    try:
        with Image.open(image) as picture:
            width, height = picture.size
            turned = picture.getexif().get(ExifTags.Base.Orientation) in _TURNED
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return []
    return [(width, height), (height, width)] if turned else [(width, height)]
