"""What is drawn over images: heat, rings, crop boxes and lines between cells.

Places on a picture are shares of its width and height, from 0 to 1.

Dimensions: an image is H x W pixels, a map of values h x w cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from clove_ssl.painting.predictions import Colour
from clove_ssl.painting.sheets import Pixels

Floats = NDArray[np.floating]

_HEAT = np.array([(20, 12, 60), (95, 20, 120), (190, 50, 90), (245, 130, 40), (252, 245, 160)])
"""From little to much; it gets brighter all the way, so it also reads in grey."""
_OPACITY = 0.75
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
    mixed: Pixels = (_OPACITY * colours + (1 - _OPACITY) * grey).round().astype(np.uint8)
    return mixed


def as_colours(shares: Floats, size: tuple[int, int]) -> Image.Image:
    """A map (h, w, 3) of numbers from 0 to 1 as a picture of (width, height)."""
    levels = (255 * np.clip(shares, 0, 1)).round().astype(np.uint8)
    return Image.fromarray(levels).resize(size, Image.Resampling.BICUBIC)


def ring(picture: Image.Image, place: tuple[float, float], *, radius: int = 8) -> Image.Image:
    """Mark a place; the ring is seen on bright and on dark."""
    x, y = place[0] * picture.width, place[1] * picture.height
    pen = ImageDraw.Draw(picture)
    for reach, colour, width in ((radius + 1, _BLACK, 4), (radius, _WHITE, 2)):
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
        pen.text((left + 9, top + 7), label, font=font, fill=_ink_on(colour), anchor="mm")
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


def _ink_on(colour: Colour) -> Colour:
    red, green, blue = colour
    return _BLACK if 0.3 * red + 0.59 * green + 0.11 * blue > 120 else _WHITE
