"""Outlines: one family of shapes per class, each with random proportions.

An outline is the signed distance to a shape's border, negative inside, in the
shape's own coordinates: x and y between -1 and 1, y down when upright. It is
exact near the border, which is where pixels are decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clove_ssl.data.scenes.numbers import Draws, Field, clamp, heading, radii, turns, wave

MARGIN = 4.0  # pixels kept free around a shape, for soft edges and shadows


@dataclass(frozen=True)
class Patch:
    """The pixels around one object, with their coordinates in the object's frame."""

    rows: slice
    columns: slice
    x: Field
    y: Field
    radius: float  # pixels per unit of x and y
    upright: tuple[Field, Field]  # unrotated coordinates, (1, w) and (h, 1)


def lay_patch(
    size: int, centre: tuple[float, float], *, radius: float, turn: float = 0.0
) -> Patch | None:
    """The part of a square image that an object can touch; None when it touches none."""
    cosine, sine = heading(turn)
    reach = radius * (abs(cosine) + abs(sine)) + MARGIN
    columns = _overlap(centre[0], reach, size)
    rows = _overlap(centre[1], reach, size)
    if columns.start >= columns.stop or rows.start >= rows.stop:
        return None
    across = _offsets(columns, centre[0], radius)[None, :]
    down = _offsets(rows, centre[1], radius)[:, None]
    x = across * cosine + down * sine
    y = down * cosine - across * sine
    return Patch(rows, columns, x, y, radius, (across, down))


def _overlap(centre: float, reach: float, size: int) -> slice:
    return slice(max(0, int(centre - reach)), min(size, int(centre + reach) + 1))


def _offsets(pixels: slice, centre: float, radius: float) -> Field:
    offsets = np.arange(pixels.start, pixels.stop, dtype=np.float32)
    offsets += 0.5 - centre  # a pixel is judged at its middle
    offsets /= radius
    return offsets


Outline = Callable[[Patch, Draws], Field]


def disc(patch: Patch, draws: Draws) -> Field:
    """A disc, seen more or less from the side."""
    flatness = draws.uniform(1.0, 1.4)
    distance = radii(patch.x, patch.y * flatness)
    distance -= 1
    distance /= flatness
    return distance


def box(patch: Patch, draws: Draws) -> Field:
    """A rectangle with rounded corners."""
    return _rectangle(patch.x, patch.y, 1.0, draws.uniform(0.5, 1.0), draws.uniform(0, 0.2))


def _rectangle(
    x: Field, y: Field, half_width: float, half_height: float, rounding: float = 0.0
) -> Field:
    right = np.abs(x)
    right -= half_width - rounding
    below = np.abs(y)
    below -= half_height - rounding
    inner = np.minimum(np.maximum(right, below), 0)
    inner -= rounding
    np.maximum(right, 0, out=right)
    np.maximum(below, 0, out=below)
    inner += radii(right, below)
    return inner


def star(patch: Patch, draws: Draws) -> Field:
    """A star with five to seven points."""
    points = draws.integer(5, 7)
    inner = draws.uniform(0.4, 0.6)
    angle = turns(patch.x, patch.y)
    angle *= points
    angle -= np.floor(angle)
    angle -= 0.5
    border = np.abs(angle)  # 0 at the points, 1/2 between them
    border *= -2 * (1 - inner)
    border += 1
    distance = radii(patch.x, patch.y)
    distance -= border
    distance *= 0.6  # the border runs slanted to the radius
    return distance


def ring(patch: Patch, draws: Draws) -> Field:
    """A ring with a wide hole."""
    thickness = draws.uniform(0.16, 0.28)
    distance = radii(patch.x, patch.y * draws.uniform(1.0, 1.3))
    distance -= 1 - thickness
    np.abs(distance, out=distance)
    distance -= thickness
    return distance


def triangle(patch: Patch, draws: Draws) -> Field:
    """A triangle on a level base, its tip somewhere above."""
    tip = draws.uniform(-0.6, 0.6)
    sides = patch.y - 0.8
    for corner in (-1.0, 1.0):
        normal_x, normal_y = 1.7 * corner, -(1 - tip * corner)
        length = math.sqrt(normal_x * normal_x + normal_y * normal_y)
        side = (patch.x - corner) * (normal_x / length)
        side += (patch.y - 0.8) * (normal_y / length)
        np.maximum(sides, side, out=sides)
    return sides


def cross(patch: Patch, draws: Draws) -> Field:
    """Two bars that cross in the middle."""
    half_width = draws.uniform(0.22, 0.38)
    level = _rectangle(patch.x, patch.y, 1.0, half_width)
    upright = _rectangle(patch.x, patch.y, half_width, draws.uniform(0.8, 1.0))
    return np.minimum(level, upright, out=level)


def leaf(patch: Patch, draws: Draws) -> Field:
    """What two overlapping discs have in common, pointed at both ends of x."""
    half_width = draws.uniform(0.35, 0.6)
    shift = (1 - half_width * half_width) / (2 * half_width)
    across = np.abs(patch.y)
    across += shift
    distance = radii(patch.x, across)
    distance -= half_width + shift
    return distance


def gear(patch: Patch, draws: Draws) -> Field:
    """A toothed wheel with a hole for its axle."""
    angle = turns(patch.x, patch.y)
    angle *= draws.integer(8, 13)
    teeth = wave(angle)
    teeth *= 2
    clamp(teeth, -1, 1)
    teeth *= draws.uniform(0.07, 0.12)
    away = radii(patch.x, patch.y)
    distance: Field = away - 0.88
    distance -= teeth
    np.subtract(draws.uniform(0.15, 0.35), away, out=away)
    np.maximum(distance, away, out=distance)
    return distance


def tree(patch: Patch, draws: Draws) -> Field:
    """A crown of overlapping discs on a trunk."""
    x, y = patch.x, patch.y
    half_width = draws.uniform(0.07, 0.13)
    distance = _rectangle(x, y - 0.5, half_width, 0.5)
    for side in (-0.4, 0.0, 0.4):
        high = draws.uniform(-0.45, -0.15) - (0.2 if side == 0 else 0)
        lobe = radii(x - side - draws.uniform(-0.08, 0.08), y - high)
        lobe -= draws.uniform(0.3, 0.42)
        np.minimum(distance, lobe, out=distance)
    return distance


def blob(patch: Patch, draws: Draws) -> Field:
    """A lump of no class."""
    angle = turns(patch.x, patch.y)
    distance = radii(patch.x, patch.y)
    distance -= 0.72
    for lobes in (2, 3):
        bulge = wave(angle * lobes + draws.unit())
        bulge *= draws.uniform(0.04, 0.16)
        distance -= bulge
    return distance


def bar(patch: Patch, draws: Draws) -> Field:
    """A pole or a wire of no class."""
    return _rectangle(patch.x, patch.y, 1.0, draws.uniform(0.02, 0.1))
