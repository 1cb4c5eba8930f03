"""Sheets of tiles: pictures of one width with captions, below a title.

Pictures are arrays (H, W, 3) of bytes until they become tiles. Nothing is cut off: captions
that are too long for their tile lose their middle, titles go on in the next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from clove_ssl.painting.predictions import write_sheet

Pixels = NDArray[np.uint8]  # (H, W, 3)

TILE = 200  # pixels of a tile's width
_PAGE, _INK, _QUIET = (255, 255, 255), (20, 20, 20), (92, 102, 109)
_CAPTION, _TITLE, _LEADING = 13, 16, 4  # pixels of letters, and between lines


def enlarged(pixels: Pixels, width: int = TILE, *, smooth: bool = True) -> Image.Image:
    """A picture of this width with its sides in proportion."""
    height = max(1, round(width * pixels.shape[0] / pixels.shape[1]))
    kind = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return Image.fromarray(pixels).resize((width, height), kind)


def captioned(picture: Image.Image, caption: str, *, note: str = "") -> Image.Image:
    """The picture with one line of text above it, or two."""
    font = ImageFont.load_default(size=_CAPTION)
    lines = [(caption, _INK)] + [(note, _QUIET)] * bool(note)
    band = len(lines) * (_CAPTION + _LEADING) + _LEADING
    whole = Image.new("RGB", (picture.width, picture.height + band), _PAGE)
    whole.paste(picture, (0, band))
    pen = ImageDraw.Draw(whole)
    for number, (text, colour) in enumerate(lines):
        place = (1, number * (_CAPTION + _LEADING))
        pen.text(place, _shortened(text, picture.width - 2, font), font=font, fill=colour)
    return whole


def wrapped(tiles: Sequence[Image.Image], most: int) -> list[list[Image.Image]]:
    """Tiles in as few rows of at most ``most`` as possible, which are about equally long."""
    rows = -(-len(tiles) // most)
    per_row = -(-len(tiles) // rows)
    return [list(tiles[start : start + per_row]) for start in range(0, len(tiles), per_row)]


def write_titled_sheet(path: Path, title: str, rows: Sequence[Sequence[Image.Image]]) -> Path:
    """Write tiles as one PNG, a row below the other, under a title."""
    width = max(sum(tile.width + 6 for tile in row) - 6 for row in rows)
    return write_sheet(path, [[_heading(title, max(width, 2 * TILE))], *rows])


def _heading(title: str, width: int) -> Image.Image:
    font = ImageFont.load_default(size=_TITLE)
    lines = _broken(title, width, font)
    step = _TITLE + _LEADING + 2
    band = Image.new("RGB", (width, len(lines) * step + 2), _PAGE)
    for number, line in enumerate(lines):
        shown = _shortened(line, width, font)
        ImageDraw.Draw(band).text((1, number * step), shown, font=font, fill=_INK)
    return band


def _broken(text: str, width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> list[str]:
    """Lines of whole words."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _shortened(text: str, width: float, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The text, or its beginning and end around dots."""
    if font.getlength(text) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        tail = kept // 2
        shorter = f"{text[: kept - tail]}...{text[len(text) - tail :]}"
        if font.getlength(shorter) <= width:
            return shorter
    return text[:1]
