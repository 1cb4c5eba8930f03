"""The canvas: pixels and labels, painted together so that they cannot disagree.

Things are painted back to front. A thing arrives as a stamp: its box, its
signed distance and its colours. The distance decides everything at once: how
much of a pixel the thing covers, who owns the pixel (crisp, at the border),
and where its shadow falls on what lies below.

Pixels are float, 0 to 255, as planes: (3, H, W).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.scenes.numbers import Draws, Field, clamp, heading
from clove_ssl.data.scenes.shapes import Patch

Colour = tuple[float, float, float]

_PENUMBRA = 4.0  # pixels over which a shadow fades


@dataclass(frozen=True)
class Light:
    """One lamp far away, the same for everything in a scene."""

    towards: tuple[float, float]  # unit vector in the image, from a thing to the lamp
    shading: float  # how much brighter the lit side is
    shadow: float  # how dark a shadow is, 0 to 1
    reach: float  # length of shadows in pixels


def draw_light(draws: Draws, size: int) -> Light:
    """A lamp somewhere above, or no more than a bright haze."""
    return Light(
        towards=heading(draws.uniform(0.55, 0.95)),
        shading=draws.uniform(0.1, 0.5),
        shadow=draws.uniform(0.2, 0.7) if draws.chance(0.8) else 0.0,
        reach=size * draws.uniform(0.01, 0.05),
    )


@dataclass(frozen=True)
class Stamp:
    """A thing ready to be painted."""

    rows: slice
    columns: slice
    distance: Field  # (h, w) pixels to the border, negative inside
    colours: Field  # (3, h, w)
    parts: NDArray[np.uint8] | None = None  # (h, w)
    surface: Field | None = None  # (h, w, 2)


class Canvas:
    """An image that is being painted, with the labels of its pixels."""

    def __init__(self, background: Field) -> None:
        size = background.shape[-1]
        self.pixels = background  # (3, H, W)
        self.owner = np.zeros((size, size), np.uint8)  # number of the topmost object, 0 for none
        self.parts = np.zeros((size, size), np.uint8)
        self.surface = np.zeros((size, size, 2), np.float32)
        self._has_persons = False

    def paint(self, stamp: Stamp, owner: int, light: Light) -> None:
        """Put a stamp on top of everything painted so far."""
        if light.shadow:
            self._cast_shadow(stamp, light)
        self._blend(stamp)
        self._label(stamp, owner)

    def _cast_shadow(self, stamp: Stamp, light: Light) -> None:
        right = round(-light.towards[0] * light.reach)
        down = round(-light.towards[1] * light.reach)
        size = len(self.owner)
        rows, from_row = _shifted(stamp.rows, down, size)
        columns, from_column = _shifted(stamp.columns, right, size)
        lit = stamp.distance[from_row, from_column] * (light.shadow / _PENUMBRA)
        lit += 1 - light.shadow / 2
        clamp(lit, 1 - light.shadow, 1)
        self.pixels[:, rows, columns] *= lit

    def _blend(self, stamp: Stamp) -> None:
        cover = 0.5 - stamp.distance
        clamp(cover)
        below = self.pixels[:, stamp.rows, stamp.columns]
        change = stamp.colours - below
        change *= cover
        below += change

    def _label(self, stamp: Stamp, owner: int) -> None:
        inside = stamp.distance <= 0
        np.copyto(self.owner[stamp.rows, stamp.columns], owner, where=inside)
        if stamp.parts is not None and stamp.surface is not None:
            self._has_persons = True
            np.copyto(self.parts[stamp.rows, stamp.columns], stamp.parts, where=inside)
            where = inside[:, :, None]
            np.copyto(self.surface[stamp.rows, stamp.columns], stamp.surface, where=where)
        elif self._has_persons:
            self.parts[stamp.rows, stamp.columns][inside] = 0
            self.surface[stamp.rows, stamp.columns][inside] = 0


def _shifted(pixels: slice, shift: int, size: int) -> tuple[slice, slice]:
    """Where a range lands when it is moved, and which part of it stays in the image."""
    start, stop = max(0, pixels.start + shift), min(size, pixels.stop + shift)
    origin = pixels.start + shift
    return slice(start, max(start, stop)), slice(start - origin, max(start, stop) - origin)


def draw_colours(draws: Draws) -> tuple[Colour, Colour]:
    """Two colours that can be told apart, whatever they are."""
    first = tuple(draws.uniform(25, 230) for _ in range(3))
    brighter = sum(first) < 3 * 128
    contrast = draws.uniform(45, 150) * (1 if brighter else -1)
    second = tuple(
        min(250.0, max(5.0, channel + contrast * draws.uniform(0.3, 1.0))) for channel in first
    )
    return (first[0], first[1], first[2]), (second[0], second[1], second[2])


def stain(mix: Field, first: Colour, second: Colour) -> Field:
    """Colour planes (3, h, w) of a field that mixes two colours."""
    planes = np.empty((3, *mix.shape), np.float32)
    for plane, start, end in zip(planes, first, second, strict=True):
        np.multiply(mix, end - start, out=plane)
        plane += start
    return planes


def relief(patch: Patch, outline: Field, *, light: Light, bulge: float) -> Field:
    """Brightness of a thing that is brighter towards the lamp and darker at its border."""
    across, down = patch.upright
    right, below = light.towards
    brightness: Field = outline * -3.0  # full at a third of the way to the middle
    clamp(brightness)
    brightness *= bulge
    slope = down * (below * light.shading) + (1 - bulge)
    brightness += across * (right * light.shading) + slope
    np.maximum(brightness, 0.15, out=brightness)
    return brightness
