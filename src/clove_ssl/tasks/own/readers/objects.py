"""One object from untrusted numbers: cut at the border of its image, or left out and named."""

from __future__ import annotations

from collections.abc import Sequence

from clove_ssl.tasks.labels.samples import Annotation, Box, Keypoints, Polygons
from clove_ssl.tasks.own.dataset import Problems

MOST_CORNERS = 100_000
"""Corners of the polygons of one object."""
SLACK = 1.0
"""Pixels that a box may leave its image by without being mentioned; files round their numbers."""
LARGEST_NUMBER = 1e7
"""No place in an image is farther away, and what is no number is not below it."""
LEAST_SIDE = 0.5
"""Pixels of a box that is still one."""

CUT = "boxes reach over the border of their image and were cut there"
OUTSIDE = "boxes lie outside their image or have no area and were left out"
NO_NUMBERS = "objects have coordinates that are no finite numbers and were left out"
TOO_MANY = f"objects have outlines of more than {MOST_CORNERS:,} corners and were left out"

Size = tuple[int, int]  # H, W


def make_object(
    category: int,
    size: Size,
    problems: Problems,
    where: object,
    *,
    box: Sequence[float] | None = None,
    polygons: Sequence[Sequence[float]] = (),
    keypoints: Keypoints | None = None,
) -> Annotation | None:
    """The object as an annotation, or None; what was done about it is noted."""
    numbers = [*(box or ()), *(value for polygon in polygons for value in polygon)]
    if len(numbers) > 2 * MOST_CORNERS:
        problems.add(TOO_MANY, where)
        return None
    if not all(abs(value) < LARGEST_NUMBER for value in numbers):
        problems.add(NO_NUMBERS, where)
        return None
    whole = extent(polygons) if box is None else (box[0], box[1], box[2], box[3])
    inside = cut_box(whole, size)
    if min(inside[2] - inside[0], inside[3] - inside[1]) < LEAST_SIDE:
        problems.add(OUTSIDE, where)
        return None
    if max(abs(a - b) for a, b in zip(whole, inside, strict=True)) > SLACK:
        problems.add(CUT, where)
    mask: Polygons = tuple(_cut_polygon(polygon, size) for polygon in polygons)
    area = sum(map(polygon_area, mask)) or (inside[2] - inside[0]) * (inside[3] - inside[1])
    return Annotation(inside, category, area, mask=mask or None, keypoints=keypoints)


def cut_box(box: Box, size: Size) -> Box:
    """The part of a box x0, y0, x1, y1 that lies in the image."""
    height, width = size
    x0, x1 = (min(max(value, 0.0), float(width)) for value in (box[0], box[2]))
    y0, y1 = (min(max(value, 0.0), float(height)) for value in (box[1], box[3]))
    return x0, y0, x1, y1


def extent(polygons: Sequence[Sequence[float]]) -> Box:
    """The box around polygons."""
    xs = [value for polygon in polygons for value in polygon[0::2]]
    ys = [value for polygon in polygons for value in polygon[1::2]]
    return float(min(xs)), float(min(ys)), float(max(xs)), float(max(ys))


def polygon_area(polygon: Sequence[float]) -> float:
    """The area of a polygon x, y, x, y, ... by the shoelace formula."""
    xs, ys = polygon[0::2], polygon[1::2]
    turned = zip(xs, ys, [*xs[1:], xs[0]], [*ys[1:], ys[0]], strict=True)
    return abs(sum(x * next_y - next_x * y for x, y, next_x, next_y in turned)) / 2


def _cut_polygon(polygon: Sequence[float], size: Size) -> tuple[float, ...]:
    height, width = size
    limits = (width, height)
    return tuple(
        min(max(float(value), 0.0), float(limits[place % 2])) for place, value in enumerate(polygon)
    )
