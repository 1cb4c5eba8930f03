"""Crops, boxes and matching cells, one number at a time in double precision.

Written to be read against the text of the paper and of torchvision's
RandomResizedCrop, not to be fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Box = tuple[float, float, float, float]  # x0, y0, x1, y1, swapped where flipped
Crop = tuple[int, int, int, int]  # top, left, height, width


def random_resized_crop(
    *,
    area_draws: Sequence[float],
    ratio_draws: Sequence[float],
    place_draws: tuple[float, float],
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Crop:
    """The crop that random-resized-crop makes of these uniform draws."""
    for area_draw, ratio_draw in zip(area_draws, ratio_draws, strict=True):
        area = height * width * (scale[0] + area_draw * (scale[1] - scale[0]))
        low, high = math.log(ratio[0]), math.log(ratio[1])
        aspect = math.exp(low + ratio_draw * (high - low))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(place_draws[0] * (height - h + 1))
            left = int(place_draws[1] * (width - w + 1))
            return top, left, h, w
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def per_axis_box(
    crop: Crop, *, height: int, width: int, flipped: bool, flipped_vertically: bool
) -> Box:
    """Corners of a crop as the released code states them: pixel centres, each axis 0 to 1."""
    top, left, h, w = crop
    x0, x1 = left / (width - 1), (left + w - 1) / (width - 1)
    y0, y1 = top / (height - 1), (top + h - 1) / (height - 1)
    if flipped:
        x0, x1 = x1, x0
    if flipped_vertically:
        y0, y1 = y1, y0
    return x0, y0, x1, y1


def cell_centers(box: Box, grid: tuple[int, int]) -> list[tuple[float, float]]:
    """Centres (x, y) of the cells of a view, row by row."""
    x0, y0, x1, y1 = box
    rows, columns = grid
    bin_width, bin_height = (x1 - x0) / columns, (y1 - y0) / rows
    return [
        (x0 + (column + 0.5) * bin_width, y0 + (row + 0.5) * bin_height)
        for row in range(rows)
        for column in range(columns)
    ]


def cell_diagonal(box: Box, grid: tuple[int, int]) -> float:
    """Diagonal of one cell of a view."""
    x0, y0, x1, y1 = box
    return math.hypot((x1 - x0) / grid[1], (y1 - y0) / grid[0])


def relative_distances(
    box_a: Box, box_b: Box, grid_a: tuple[int, int], grid_b: tuple[int, int]
) -> list[list[float]]:
    """Distances between the cells of two views, in units of the larger cell diagonal."""
    unit = max(cell_diagonal(box_a, grid_a), cell_diagonal(box_b, grid_b))
    return [
        [math.dist(a, b) / unit for b in cell_centers(box_b, grid_b)]
        for a in cell_centers(box_a, grid_a)
    ]
