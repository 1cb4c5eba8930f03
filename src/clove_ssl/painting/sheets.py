"""Sheets of tiles: pictures of one width with captions, below a title.

Pictures are arrays (H, W, 3) of bytes until they become tiles. Nothing is cut off: captions
that are too long for their tile lose their middle, titles go on in the next line. Places on
a picture are shares of its width and height, from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from clove_ssl.painting.predictions import Colour, drawable, readable_on, write_sheet

Pixels = NDArray[np.uint8]  # (H, W, 3)

TILE = 200  # pixels of a tile's width
_MOST_UPRIGHT = 10  # widths that a picture may be high: one column of pixels would fill the memory
_RADIUS = 8  # pixels of a ring
_PAGE, _INK, _QUIET = (255, 255, 255), (20, 20, 20), (92, 102, 109)
_CAPTION, _TITLE, _LEADING = 13, 16, 4  # pixels of letters, and between lines


def enlarged(pixels: Pixels, width: int = TILE) -> Image.Image:
    """A picture of this width with its sides in proportion; only a strip is made shorter."""
    height = max(1, round(width * min(pixels.shape[0] / pixels.shape[1], _MOST_UPRIGHT)))
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)


def captioned(picture: Image.Image, caption: str, *, note: str = "") -> Image.Image:
    """The picture with one line of text above it, or two."""
    font = ImageFont.load_default(size=_CAPTION)
    lines = [(caption, _INK)] + ([(note, _QUIET)] if note else [])
    band = len(lines) * (_CAPTION + _LEADING) + _LEADING
    whole = Image.new("RGB", (picture.width, picture.height + band), _PAGE)
    whole.paste(picture, (0, band))
    pen = ImageDraw.Draw(whole)
    for number, (text, colour) in enumerate(lines):
        place = (1, number * (_CAPTION + _LEADING))
        pen.text(place, _shortened(drawable(text), picture.width - 2, font), font=font, fill=colour)
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
    lines = _broken(drawable(title), width, font)
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


Floats = NDArray[np.floating]

_HEAT = np.array([(20, 12, 60), (95, 20, 120), (190, 50, 90), (245, 130, 40), (252, 245, 160)])
"""From little to much; it gets brighter all the way, so it also reads in grey."""
_HEAT_OPACITY = 0.75
_SAG = 0.04  # of a line between cells, in its length
_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)


def heat(pixels: Pixels, values: Floats, *, low: float, high: float) -> Pixels:
    """A greyish image (H, W, 3) under the colours of values (h, w) between two limits."""
    span = max(high - low, 1e-12)
    shares = np.clip((values - low) / span, 0, 1).astype(np.float32)
    size = (pixels.shape[1], pixels.shape[0])
    smooth = np.asarray(Image.fromarray(shares).resize(size, Image.Resampling.BILINEAR))
    places = np.linspace(0, 1, len(_HEAT))
    colours = np.stack([np.interp(smooth, places, _HEAT[:, c]) for c in range(3)], axis=-1)
    grey = pixels.mean(axis=-1, keepdims=True)
    mixed: Pixels = (_HEAT_OPACITY * colours + (1 - _HEAT_OPACITY) * grey).round().astype(np.uint8)
    return mixed


def as_colours(shares: Floats, size: tuple[int, int]) -> Image.Image:
    """A map (h, w, 3) of numbers from 0 to 1 as a picture of (width, height)."""
    levels = (255 * np.clip(shares, 0, 1)).round().astype(np.uint8)
    return Image.fromarray(levels).resize(size, Image.Resampling.BICUBIC)


def ring(picture: Image.Image, place: tuple[float, float]) -> Image.Image:
    """Mark a place; the ring is seen on bright and on dark."""
    x, y = place[0] * picture.width, place[1] * picture.height
    pen = ImageDraw.Draw(picture)
    for reach, colour, width in ((_RADIUS + 1, _BLACK, 4), (_RADIUS, _WHITE, 2)):
        pen.ellipse((x - reach, y - reach, x + reach, y + reach), outline=colour, width=width)
    return picture


def crop_boxes(
    picture: Image.Image,
    boxes: Sequence[tuple[float, float, float, float]],
    *,
    labels: Sequence[str],
    colours: Sequence[Colour],
) -> Image.Image:
    """Boxes x0, y0, x1, y1 with labels in their corners, moved aside where they would meet."""
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(size=12)
    taken: list[tuple[float, float]] = []
    for box, label, colour in zip(boxes, labels, colours, strict=True):
        x0, y0 = box[0] * picture.width, box[1] * picture.height
        x1, y1 = box[2] * picture.width - 1, box[3] * picture.height - 1
        pen.rectangle((x0, y0, max(x0, x1), max(y0, y1)), outline=colour, width=2)
        left, top = _free_place(picture, x0, y0, taken)
        taken.append((left, top))
        pen.rectangle((left, top, left + 17, top + 14), fill=colour)
        pen.text((left + 9, top + 7), label, font=font, fill=readable_on(colour), anchor="mm")
    return picture


def framed(picture: Image.Image, colour: Colour) -> Image.Image:
    """The picture with a coloured edge."""
    corner = (0, 0, picture.width - 1, picture.height - 1)
    ImageDraw.Draw(picture).rectangle(corner, outline=colour, width=3)
    return picture


def joined_by_lines(
    left: Image.Image,
    right: Image.Image,
    lines: Sequence[tuple[float, float, float, float]],
    colours: Sequence[Colour],
    *,
    gap: int = 40,
) -> Image.Image:
    """Two pictures side by side, with lines x, y -> x', y' from the first to the second."""
    size = (left.width + gap + right.width, max(left.height, right.height))
    whole = Image.new("RGB", size, _WHITE)
    whole.paste(left, (0, 0))
    whole.paste(right, (left.width + gap, 0))
    pen = ImageDraw.Draw(whole)
    shift, scale = left.width + gap, (right.width, right.height)
    starts = [(ax * left.width, ay * left.height) for ax, ay, _, _ in lines]
    ends = [(shift + bx * scale[0], by * scale[1]) for _, _, bx, by in lines]
    for start, end, colour in zip(starts, ends, colours, strict=True):
        pen.line(_bow(start, end), fill=colour, width=1)
    for places in (starts, ends):  # above all lines
        for (x, y), colour in zip(places, colours, strict=True):
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=colour, outline=_BLACK)
    return whole


def _bow(start: tuple[float, float], end: tuple[float, float]) -> list[tuple[float, float]]:
    """A line that sags the more the longer it is, so that lines along one row stay apart."""
    shares = np.linspace(0, 1, 33)
    sag = 4 * shares * (1 - shares) * _SAG * float(np.hypot(end[0] - start[0], end[1] - start[1]))
    xs = start[0] + shares * (end[0] - start[0])
    ys = start[1] + shares * (end[1] - start[1]) + sag
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def _free_place(
    picture: Image.Image, x: float, y: float, taken: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Where a label at a corner fits into the picture and meets no other one."""
    left, top = min(x, picture.width - 18), min(y, picture.height - 15)
    while any(abs(left - other) < 18 and abs(top - row) < 15 for other, row in taken):
        left += 18
        if left > picture.width - 18:
            left, top = min(x, picture.width - 18), top + 15
    return max(0, left), max(0, top)
