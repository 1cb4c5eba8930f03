"""Surfaces of persons over images: labelled points, colour maps of part, U and V, contour lines.

A surface is a small map that lies somewhere in the image: the part of the body that every pixel
shows, 0 for none, and U and V on it. Later surfaces cover earlier ones.

Dimensions: P points, H x W pixels of the image, h x w pixels of a surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from clove_ssl.painting.predictions import Pixels, Things, draw_things, tone_colour

PARTS = 24
_WIDTH = 480  # pixels of a picture, which thin lines need
_OPACITY = 0.75
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


def draw_points(
    image: Pixels, points: NDArray[np.floating], parts: NDArray[np.int64], *, caption: str
) -> Image.Image:
    """An image with labelled points (P, 2) in the colours of their parts (P,)."""
    page, scale = _enlarged(image)
    picture = Image.fromarray(page)
    pen = ImageDraw.Draw(picture)
    for (x, y), part in zip((points * scale).tolist(), parts.tolist(), strict=True):
        place = (x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS)
        pen.ellipse(place, fill=tone_colour(part), outline=_BORDER)
    return _captioned(np.asarray(picture), caption)


def draw_colour_map(image: Pixels, surfaces: Sequence[SurfaceMap], *, caption: str) -> Image.Image:
    """An image on which U is red, V is green, and the part decides how blue a pixel is."""
    page, _ = _enlarged(image)
    part, u, v = _enlarge_maps(_laid_out(surfaces, image), page)
    colours = np.stack([u, v, part.astype(np.float32) * (255 / PARTS)], axis=-1)
    mixed = page + _OPACITY * (colours - page)
    return _captioned(np.where((part > 0)[..., None], mixed, page), caption)


def draw_contours(image: Pixels, surfaces: Sequence[SurfaceMap], *, caption: str) -> Image.Image:
    """An image with lines of equal U (orange) and V (blue), and white borders of parts."""
    page, _ = _enlarged(image)
    part, u, v = _enlarge_maps(_laid_out(surfaces, image), page)
    for name, values in (("v", v), ("u", u)):
        level = (values.astype(np.int64) * _STEPS) // 256
        page[_changes(level, part, within=True)] = _LINES[name]
    page[_changes(part, part, within=False)] = _BORDER
    return _captioned(page, caption)


def _laid_out(surfaces: Sequence[SurfaceMap], image: Pixels) -> NDArray[np.uint8]:
    """All surfaces in one map of the image: (3, H, W)."""
    height, width = image.shape[:2]
    whole = np.zeros((3, height, width), np.uint8)
    for surface in surfaces:
        top, left = max(surface.top, 0), max(surface.left, 0)
        seen = surface.iuv[
            :, top - surface.top : height - surface.top, left - surface.left : width - surface.left
        ]
        window = whole[:, top : top + seen.shape[1], left : left + seen.shape[2]]
        np.copyto(window, seen, where=seen[:1] > 0)
    return whole


def _enlarged(image: Pixels) -> tuple[Pixels, float]:
    """A copy as wide as a picture, and how many times larger it is."""
    height, width = image.shape[:2]
    scale = _WIDTH / width
    size = (_WIDTH, max(1, round(scale * height)))
    return np.array(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC)), scale


def _enlarge_maps(maps: NDArray[np.uint8], page: Pixels) -> NDArray[np.uint8]:
    """(3, H, W) -> (3, ...) in the pixels of the page; values are not mixed."""
    size = (page.shape[1], page.shape[0])
    return np.stack(
        [
            np.asarray(Image.fromarray(channel).resize(size, Image.Resampling.NEAREST))
            for channel in maps
        ]
    )


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


def _captioned(pixels: NDArray[np.number], caption: str) -> Image.Image:
    nothing = Things(boxes=np.zeros((0, 4)), labels=(), tones=())
    return draw_things(pixels.round().astype(np.uint8), nothing, caption=caption)
