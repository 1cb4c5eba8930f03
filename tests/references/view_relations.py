"""Views that depend on each other, one image at a time, straight from what is promised."""

from __future__ import annotations

import math
from collections.abc import Sequence

from references.geometry import Crop, random_resized_crop

Row = Sequence[float]
Span = tuple[float, float]


def crop_of(row: Row, height: int, width: int, scale: Span, ratio: Span) -> Crop:
    """The crop that the first 22 numbers of a row make."""
    return random_resized_crop(
        area_draws=row[:10],
        ratio_draws=row[10:20],
        place_draws=(row[20], row[21]),
        height=height,
        width=width,
        scale=scale,
        ratio=ratio,
    )


def shared_area(a: Crop, b: Crop) -> int:
    """Pixels that two crops have in common, counted."""
    rows = set(range(a[0], a[0] + a[2])) & set(range(b[0], b[0] + b[2]))
    columns = set(range(a[1], a[1] + a[3])) & set(range(b[1], b[1] + b[3]))
    return len(rows) * len(columns)


def first_sharing(crops: Sequence[Crop], other: Crop, share: float) -> Crop:
    """The first crop of which at least ``share`` lies in the other, or else the last."""
    for crop in crops:
        common = shared_area(crop, other)
        if common > 0 and common / (crop[2] * crop[3]) >= share:
            return crop
    return crops[-1]


def jigsaw(rows: Sequence[Row], *, grid: int, frame: int, patch: int) -> list[tuple[int, int]]:
    """Top and left of every patch in its frame: cells in the order of their number's rank."""
    cell = frame // grid
    ranked = sorted(range(len(rows)), key=lambda place: rows[place][0])
    corners = []
    for row, place in zip(rows, ranked, strict=True):
        down, right = (math.floor(number * (cell - patch + 1)) for number in (row[20], row[21]))
        corners.append((place // grid * cell + down, place % grid * cell + right))
    return corners
