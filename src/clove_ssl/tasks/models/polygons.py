"""Polygons to binary masks, with the filling rule of the COCO tools.

That rule draws the outline on a grid five times finer, keeps the places where it passes from one
column of pixel centres to the next, and fills the runs between them, column by column. It decides
single pixels, so masks are comparable with the published ones only if it is the same.

A polygon is an array ``x0, y0, x1, y1, ...`` in pixels; an object may have several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Polygon = npt.NDArray[np.float64]  # (2k,)
Mask = npt.NDArray[np.bool_]

FINER = 5
SMALLEST_SIDE = 0.1


def masks_in_boxes(
    objects: Sequence[Sequence[Polygon]], boxes: npt.NDArray[np.float32], *, size: int
) -> Mask:
    """The part of every object inside its box, as (objects, size, size)."""
    masks = [
        mask_in_box(polygons, box, size=size) for polygons, box in zip(objects, boxes, strict=True)
    ]
    return np.stack(masks) if masks else np.zeros((0, size, size), dtype=bool)


def mask_in_box(polygons: Sequence[Polygon], box: npt.NDArray[np.float32], *, size: int) -> Mask:
    """Stretch a box ``x1, y1, x2, y2`` to ``size x size`` pixels and fill the polygons in it.

    A side counts as 0.1 pixels at least.
    """
    scale = size / np.maximum(box[2:] - box[:2], SMALLEST_SIDE)  # (2,)
    moved = [((polygon.reshape(-1, 2) - box[:2]) * scale).reshape(-1) for polygon in polygons]
    return fill_polygons(moved, height=size, width=size)


def fill_polygons(polygons: Sequence[Polygon], *, height: int, width: int) -> Mask:
    """The union of the polygons: (height, width)."""
    union = np.zeros((height, width), dtype=bool)
    for polygon in polygons:
        union |= _fill(polygon, height=height, width=width)
    return union


def _fill(polygon: Polygon, *, height: int, width: int) -> Mask:
    """Switch between outside and inside at every crossing, down the columns."""
    x, y = _outline(polygon)
    step = np.flatnonzero(np.diff(x))
    column = (np.minimum(x[step], x[step + 1]) + 0.5) / FINER - 0.5
    row = (np.minimum(y[step], y[step + 1]) + 0.5) / FINER - 0.5
    inside = (column == np.floor(column)) & (column >= 0) & (column <= width - 1)
    start = np.ceil(np.clip(row[inside], 0, height))
    switches = (column[inside] * height + start).astype(np.int64)
    # A switch below the last row begins the next column, hence one place more than pixels.
    count = np.bincount(switches, minlength=height * width + 1)[: height * width]
    filled: Mask = (np.cumsum(count) % 2 == 1).reshape(width, height).T
    return filled


def _outline(polygon: Polygon) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Points of the closed outline on the finer grid, one per step along the longer axis."""
    start = np.trunc(FINER * polygon.reshape(-1, 2) + 0.5).astype(np.int64)  # (k, 2)
    end = np.roll(start, -1, axis=0)  # (k, 2)
    extent = np.abs(end - start)  # (k, 2)
    axis = (extent[:, 0] < extent[:, 1]).astype(np.int64)  # (k,) the longer axis of an edge
    edges = np.arange(len(start))
    length = extent[edges, axis]  # (k,)
    # Edges are drawn from their lower end, so that rounding does not depend on the direction.
    backwards = start[edges, axis] > end[edges, axis]  # (k,)
    low = np.where(backwards[:, None], end, start)  # (k, 2)
    rise = np.where(backwards[:, None], start, end)[edges, 1 - axis] - low[edges, 1 - axis]
    slope = rise / np.maximum(length, 1)  # (k,)

    edge = np.repeat(edges, length + 1)  # (points,)
    first = np.cumsum(length + 1) - (length + 1)  # (k,)
    travelled = np.arange(len(edge)) - first[edge]
    travelled = np.where(backwards[edge], length[edge] - travelled, travelled)
    along = low[edge, axis[edge]] + travelled
    across = low[edge, 1 - axis[edge]] + slope[edge] * travelled
    across = np.trunc(across + 0.5).astype(np.int64)
    steep = axis[edge] == 1
    return np.where(steep, across, along), np.where(steep, along, across)
