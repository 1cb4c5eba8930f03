"""The filling rule of the COCO tools, one point at a time."""

from __future__ import annotations

import math

FINER = 5


def filled(polygon: list[float], height: int, width: int) -> list[list[bool]]:
    """Rows of pixels; a pixel is inside after an odd number of switches down the columns."""
    switches = _switches(_points(polygon), height, width)
    return [
        [sum(s <= column * height + row for s in switches) % 2 == 1 for column in range(width)]
        for row in range(height)
    ]


def _points(polygon: list[float]) -> list[tuple[int, int]]:
    corners = [
        (int(FINER * x + 0.5), int(FINER * y + 0.5))
        for x, y in zip(polygon[0::2], polygon[1::2], strict=True)
    ]
    points: list[tuple[int, int]] = []
    for first, second in zip(corners, corners[1:] + corners[:1], strict=True):
        points += _edge(first, second)
    return points


def _edge(first: tuple[int, int], second: tuple[int, int]) -> list[tuple[int, int]]:
    (x0, y0), (x1, y1) = first, second
    if abs(x1 - x0) < abs(y1 - y0):
        return [(x, y) for y, x in _edge((y0, x0), (y1, x1))]
    if x0 > x1:
        return _edge(second, first)[::-1]
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    return [(x0 + step, int(y0 + slope * step + 0.5)) for step in range(x1 - x0 + 1)]


def _switches(points: list[tuple[int, int]], height: int, width: int) -> list[int]:
    switches = []
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        column = (min(x0, x1) + 0.5) / FINER - 0.5
        if x0 == x1 or column != math.floor(column) or not 0 <= column <= width - 1:
            continue
        row = (min(y0, y1) + 0.5) / FINER - 0.5
        switches.append(int(column) * height + math.ceil(min(max(row, 0), height)))
    return switches
