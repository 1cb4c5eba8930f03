"""Predictions beside the truth: boxes, masks, keypoints, classes and surfaces over images.

A picture is an image with what is in it; pictures stand side by side in a row, rows below each
other on a sheet. Small images are enlarged, because class names do not get smaller with them.
A surface of a person is a small map that lies somewhere in the image: the part of the body that
every pixel shows, 0 for none, and U and V on it. Later surfaces cover earlier ones.

Dimensions: N objects, P keypoints, H x W pixels of the image.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from clove_ssl.atomic import replacing, unwritable

Colour = tuple[int, int, int]
Pixels = NDArray[np.uint8]  # (H, W, 3)
Rectangle = tuple[float, float, float, float]

_WIDTH = 480  # pixels of a picture; smaller images are enlarged to it, larger ones reduced
_TALLEST = 4 * _WIDTH
_LETTERS = 14  # pixels
_SMALLEST_LETTERS = 10
_MARGIN = 6
_OPACITY = 0.45
_SHIFTS = (0, 1, -1, 2, -2, 3, -3)  # heights of a name that it may be moved by
_IGNORE = 255
_TONES: tuple[Colour, ...] = (
    (230, 159, 0),
    (0, 114, 178),
    (240, 228, 66),
    (213, 94, 0),
    (86, 180, 233),
    (0, 130, 95),
    (224, 142, 190),
)
"""After Okabe and Ito; bright and dark ones take turns, which all eyes can tell apart."""
_SHADES = (0.0, -0.4, 0.45, -0.2, 0.25, -0.5, 0.52, -0.3, 0.35, -0.1, 0.12, -0.45)
"""How much white, or black where negative, later rounds through the colours have in them."""
_PAGE, _INK, _NOBODY = (255, 255, 255), (20, 20, 20), (224, 224, 224)


@dataclass(frozen=True)
class Things:
    """Objects of an image, as they are painted."""

    boxes: NDArray[np.floating]  # (N, 4) x0, y0, x1, y1
    labels: tuple[str, ...]  # N
    tones: tuple[int, ...]  # N; equal numbers have one colour
    masks: Iterable[NDArray[np.bool_]] | None = None
    """N of (H, W), made one by one: those of a thousand objects in a photo fill the memory."""
    keypoints: NDArray[np.floating] | None = None  # (N, P, 3) x, y, seen if above 0
    bones: tuple[tuple[int, int], ...] = ()  # pairs of keypoints with a line between them


@dataclass
class _Page:
    """A picture in the making: its picture, its scale, and where names stand already."""

    picture: Image.Image
    scale: float
    letters: int = _LETTERS
    taken: list[Rectangle] = field(default_factory=list)

    @property
    def line(self) -> int:
        """Width of a line, in pixels."""
        return max(1, round(self.letters / 7))

    @cached_property  # loading it takes longer than writing a name
    def font(self) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return ImageFont.load_default(size=self.letters)

    @property
    def pen(self) -> ImageDraw.ImageDraw:
        return ImageDraw.Draw(self.picture)


def paint_things(image: Pixels, things: Things, *, caption: str) -> Image.Image:
    """An image with objects and a line of text above it."""
    page = _enlarge(_tinted_things(image, things))
    _paint_objects(page, things)
    return _with_caption(page.picture, caption)


def paint_things_in_place(image: Pixels, things: Things) -> Image.Image:
    """An image of its own size with objects; lines and letters grow with it."""
    page = _own_size(_tinted_things(image, things))
    _paint_objects(page, things)
    return page.picture


def _tinted_things(image: Pixels, things: Things) -> Pixels:
    return image if things.masks is None else _tint(image, things.masks, things.tones)


def _paint_objects(page: _Page, things: Things) -> None:
    colours = [tone_colour(tone) for tone in things.tones]
    for number, (box, colour) in enumerate(zip(things.boxes, colours, strict=True)):
        _paint_box(page, box, colour)
        if things.keypoints is not None:
            _paint_keypoints(page, things.keypoints[number], things.bones, colour)
    # Names come last, else the next box would cross them; the last object is the most important.
    for box, name, colour in reversed(list(zip(things.boxes, things.labels, colours, strict=True))):
        _paint_name(page, box, name, colour)


def paint_classes(
    image: Pixels, labels: NDArray[np.uint8], class_names: Sequence[str], *, caption: str
) -> Image.Image:
    """An image tinted by the class (H, W) of its pixels, with the names of those that occur.

    Class 0 is the background and has no colour; pixels that nobody judged (255) are grey.
    """
    tinted, present = _tinted_classes(image, labels)
    page = _enlarge(tinted)
    _paint_legend(page, present, class_names)
    return _with_caption(page.picture, caption)


def paint_classes_in_place(
    image: Pixels, labels: NDArray[np.uint8], class_names: Sequence[str]
) -> Image.Image:
    """The same in the size of the image, without a line of text."""
    tinted, present = _tinted_classes(image, labels)
    page = _own_size(tinted)
    _paint_legend(page, present, class_names)
    return page.picture


def _tinted_classes(image: Pixels, labels: NDArray[np.uint8]) -> tuple[Pixels, list[int]]:
    """The image in the colours of its classes, and the numbers of those that occur."""
    present = [number for number in np.unique(labels).tolist() if number not in (0, _IGNORE)]
    tinted = _tint(image, (labels == number for number in present), present)
    tinted[labels == _IGNORE] = _NOBODY
    return tinted, present


def _paint_legend(page: _Page, present: Sequence[int], class_names: Sequence[str]) -> None:
    for row, number in enumerate(present):
        place = np.array([2, 2 + row * (page.letters + 6), 2, 2]) / page.scale
        _paint_name(page, place, class_names[number], tone_colour(number))


def write_sheet(path: Path, rows: Sequence[Sequence[Image.Image]]) -> Path:
    """Write pictures as one PNG, a row below the other."""
    heights = [max(picture.height for picture in row) + _MARGIN for row in rows]
    width = max(sum(picture.width + _MARGIN for picture in row) for row in rows)
    sheet = Image.new("RGB", (width + _MARGIN, sum(heights) + _MARGIN), _PAGE)
    top = _MARGIN
    for row, height in zip(rows, heights, strict=True):
        left = _MARGIN
        for picture in row:
            sheet.paste(picture, (left, top))
            left += picture.width + _MARGIN
        top += height
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            sheet.save(file, format="PNG")
    except OSError as error:
        raise unwritable("Pictures", path, error) from None
    return path


def tone_colour(number: int) -> Colour:
    """A colour that differs from those of the neighbouring numbers, for the colour-blind, too."""
    colour = _TONES[number % len(_TONES)]
    shade = _SHADES[number // len(_TONES) % len(_SHADES)]
    ground = 255 if shade > 0 else 0
    red, green, blue = (round(each + abs(shade) * (ground - each)) for each in colour)
    return red, green, blue


def _tint(image: Pixels, masks: Iterable[NDArray[np.bool_]], tones: Sequence[int]) -> Pixels:
    tinted = image.copy()  # in bytes: of a large photo, four times as many do not fit everywhere
    for mask, number in zip(masks, tones, strict=True):
        colour = np.array(tone_colour(number), np.float32)
        covered = tinted[mask].astype(np.float32)  # (n, 3)
        tinted[mask] = (covered + _OPACITY * (colour - covered)).round().astype(np.uint8)
    return tinted


def _enlarge(image: Pixels) -> _Page:
    height, width = image.shape[:2]
    scale = min(_WIDTH / width, _TALLEST / height)  # a strip of pixels would become a tower
    size = (max(1, round(scale * width)), max(1, round(scale * height)))
    return _Page(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC), scale)


def _own_size(image: Pixels) -> _Page:
    """A page as large as the image, with letters that can be read on it as a whole."""
    shorter, longer = sorted(image.shape[:2])
    wanted = min(round(longer * _LETTERS / _WIDTH / 2), shorter // 4)  # a strip has no room
    return _Page(Image.fromarray(image), 1.0, max(_SMALLEST_LETTERS, wanted))


def _paint_box(page: _Page, box: NDArray[np.floating], colour: Colour) -> None:
    x0, y0, x1, y1 = (box * page.scale).tolist()
    place = (x0, y0, max(x0, x1 - 1), max(y0, y1 - 1))
    page.pen.rectangle(place, outline=colour, width=page.line)


def _paint_keypoints(
    page: _Page,
    points: NDArray[np.floating],
    bones: Sequence[tuple[int, int]],
    colour: Colour,
) -> None:
    places = [(x * page.scale, y * page.scale) for x, y in points[:, :2].tolist()]
    shown = (points[:, 2] > 0).tolist()
    for start, end in bones:
        if shown[start] and shown[end]:
            page.pen.line((*places[start], *places[end]), fill=colour, width=page.line)
    radius = page.line + 1
    for (x, y), visible in zip(places, shown, strict=True):
        if visible:
            place = (x - radius, y - radius, x + radius, y + radius)
            page.pen.ellipse(place, fill=colour, outline=_PAGE)


def _paint_name(page: _Page, box: NDArray[np.floating], name: str, colour: Colour) -> None:
    """A name above its box, or at a free place near that; none where names are in the way."""
    font, name = page.font, drawable(name)
    width, height = font.getlength(name) + 6, page.letters + 4
    left = min(max(0.0, box[0] * page.scale), max(0.0, page.picture.width - width))
    above = box[1] * page.scale - height
    for shift in _SHIFTS:
        top = min(max(0.0, above + shift * (height + 1)), page.picture.height - height)
        place = (left, top, left + width, top + height)
        if not any(_meet(place, other) for other in page.taken):
            page.taken.append(place)
            page.pen.rectangle(place, fill=colour)
            page.pen.text((left + 3, top), name, font=font, fill=readable_on(colour))
            return


def _meet(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


_WITHOUT_ACCENTS = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O"}
    | {"ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i", "–": "-", "—": "-", "µ": "u"}
)


def drawable(text: str) -> str:
    """The text in letters that Pillow's font has, which are those of English: Tür becomes Tur."""
    plain = unicodedata.normalize("NFKD", text.translate(_WITHOUT_ACCENTS))
    return "".join(letter for letter in plain if not unicodedata.combining(letter))


def readable_on(colour: Colour) -> Colour:
    """Ink that is seen on a colour."""
    red, green, blue = colour
    return _INK if 0.3 * red + 0.59 * green + 0.11 * blue > 120 else _PAGE


def _with_caption(picture: Image.Image, caption: str) -> Image.Image:
    band = _LETTERS + 8
    whole = Image.new("RGB", (picture.width, picture.height + band), _PAGE)
    whole.paste(picture, (0, band))
    font = ImageFont.load_default(size=_LETTERS)
    ImageDraw.Draw(whole).text((2, 2), drawable(caption), font=font, fill=_INK)
    return whole


PARTS = 24
_SURFACE_OPACITY = 0.75
_STEPS = 8  # lines of equal U, and of equal V, across a part
_LINES = {"u": (255, 140, 0), "v": (0, 210, 255)}
_BORDER = (255, 255, 255)
_RADIUS = 3


@dataclass(frozen=True)
class SurfaceMap:
    """What is seen of one person."""

    left: int
    top: int
    iuv: NDArray[np.uint8]  # (3, h, w) part, U and V


def paint_points(
    image: Pixels, points: NDArray[np.floating], parts: NDArray[np.int64], *, caption: str
) -> Image.Image:
    """An image with labelled points (P, 2) in the colours of their parts (P,)."""
    page = _enlarge(image)
    for (x, y), part in zip((points * page.scale).tolist(), parts.tolist(), strict=True):
        place = (x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS)
        page.pen.ellipse(place, fill=tone_colour(part), outline=_BORDER)
    return _with_caption(page.picture, caption)


def paint_colour_map(image: Pixels, surfaces: Sequence[SurfaceMap], *, caption: str) -> Image.Image:
    """An image on which U is red, V is green, and the part decides how blue a pixel is."""
    page, part, u, v = _enlarge_all(image, surfaces)
    colours = np.stack([u, v, part.astype(np.float32) * (255 / PARTS)], axis=-1)
    mixed = page + _SURFACE_OPACITY * (colours - page)
    return _picture(np.where((part > 0)[..., None], mixed, page), caption)


def paint_contours(image: Pixels, surfaces: Sequence[SurfaceMap], *, caption: str) -> Image.Image:
    """An image with lines of equal U (orange) and V (blue), and white borders of parts."""
    page, part, u, v = _enlarge_all(image, surfaces)
    for name, values in (("v", v), ("u", u)):
        level = (values.astype(np.int64) * _STEPS) // 256
        page[_changes(level, part, within=True)] = _LINES[name]
    page[_changes(part, part, within=False)] = _BORDER
    return _picture(page, caption)


def _laid_out(surfaces: Sequence[SurfaceMap], image: Pixels) -> NDArray[np.uint8]:
    """All surfaces in one map of the image: (3, H, W)."""
    height, width = image.shape[:2]
    whole = np.zeros((3, height, width), np.uint8)
    for surface in surfaces:
        top, left = max(surface.top, 0), max(surface.left, 0)
        bottom, right = max(height - surface.top, 0), max(width - surface.left, 0)
        seen = surface.iuv[:, top - surface.top : bottom, left - surface.left : right]
        window = whole[:, top : top + seen.shape[1], left : left + seen.shape[2]]
        np.copyto(window, seen, where=seen[:1] > 0)
    return whole


def _enlarge_all(
    image: Pixels, surfaces: Sequence[SurfaceMap]
) -> tuple[Pixels, NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """The image, and part, U and V of its pixels, as large as a picture; maps are not mixed."""
    page = np.array(_enlarge(image).picture)
    size = (page.shape[1], page.shape[0])
    part, u, v = (
        np.asarray(Image.fromarray(channel).resize(size, Image.Resampling.NEAREST))
        for channel in _laid_out(surfaces, image)
    )
    return page, part, u, v


def _picture(pixels: NDArray[np.number], caption: str) -> Image.Image:
    return _with_caption(Image.fromarray(pixels.round().astype(np.uint8)), caption)


def _changes(
    values: NDArray[np.integer], part: NDArray[np.uint8], *, within: bool
) -> NDArray[np.bool_]:
    """Where a value differs from that of the pixel to the right or below."""
    changes = np.zeros(part.shape, bool)
    for here, there in (
        (np.s_[:, :-1], np.s_[:, 1:]),
        (np.s_[:-1, :], np.s_[1:, :]),
    ):
        differs = values[here] != values[there]
        if within:
            differs &= (part[here] == part[there]) & (part[here] > 0)
        changes[here] |= differs
    return changes
