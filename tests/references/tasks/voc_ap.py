"""VOC average precision, one detection at a time and in plain Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Box = tuple[float, float, float, float]


class Object(NamedTuple):
    image: int
    category: int
    box: Box
    difficult: bool


class Detection(NamedTuple):
    image: int
    category: int
    box: Box
    score: float


def overlap(a: Box, b: Box) -> float:
    """Overlap of two boxes whose pixels count from 1 and include the last."""
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    areas = [(x1 - x0 + 1) * (y1 - y0 + 1) for x0, y0, x1, y1 in (a, b)]
    return shared / (areas[0] + areas[1] - shared)


def from_one(box: Box) -> Box:
    return box[0] + 1, box[1] + 1, box[2], box[3]


def printed(detection: Detection) -> Detection:
    """The detection as a text file with 3 and 1 decimals holds it (its box from 1)."""
    box = tuple(float(f"{value:.1f}") for value in detection.box)
    return detection._replace(box=box, score=float(f"{detection.score:.3f}"))


def average_precision(
    objects: Sequence[Object],
    detections: Sequence[Detection],
    *,
    category: int,
    threshold: float,
    rule: str,
    as_printed: bool = False,
    sizes: tuple[float, float] = (0.0, math.inf),
) -> float:
    mine = [o._replace(box=from_one(o.box)) for o in objects if o.category == category]
    found = [d._replace(box=from_one(d.box)) for d in detections if d.category == category]
    if as_printed:
        found = [printed(d) for d in found]
    found = sorted(found, key=lambda d: d.score, reverse=True)  # stable, also in reverse
    mine = [o._replace(difficult=o.difficult or is_outside(o.box, sizes)) for o in mine]
    verdicts = judge(mine, found, threshold, sizes)
    total = sum(not o.difficult for o in mine)
    return (eleven_points if rule == "11-point" else area)(curve(verdicts, total))


def is_outside(box: Box, sizes: tuple[float, float]) -> bool:
    """Whether the area of a box, from 1 and inclusive, is not in a range."""
    size = (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
    return not sizes[0] <= size < sizes[1]


def judge(
    mine: list[Object], found: list[Detection], threshold: float, sizes: tuple[float, float]
) -> list[str]:
    taken: set[int] = set()
    verdicts = []
    for detection in found:
        best, position = -math.inf, -1
        for index, thing in enumerate(mine):
            if thing.image == detection.image and overlap(detection.box, thing.box) > best:
                best, position = overlap(detection.box, thing.box), index
        if best <= threshold:
            verdicts.append("ignored" if is_outside(detection.box, sizes) else "wrong")
        elif mine[position].difficult:
            verdicts.append("ignored")
        elif position in taken:
            verdicts.append("wrong")
        else:
            taken.add(position)
            verdicts.append("right")
    return verdicts


def curve(verdicts: list[str], total: int) -> list[tuple[float, float]]:
    """(recall, precision) after every detection."""
    points = []
    right = wrong = 0
    for verdict in verdicts:
        right += verdict == "right"
        wrong += verdict == "wrong"
        recall = right / total if total else math.nan
        points.append((recall, right / (right + wrong) if right + wrong else 0.0))
    return points


def eleven_points(points: list[tuple[float, float]]) -> float:
    steps = [0.0, 0.1, 0.2, 0.1 * 3, 0.4, 0.5, 0.1 * 6, 0.1 * 7, 0.8, 0.9, 1.0]
    best = [max((p for recall, p in points if recall >= step), default=0.0) for step in steps]
    return sum(best) / 11


def area(points: list[tuple[float, float]]) -> float:
    total, before = 0.0, 0.0
    for index, (recall, _) in enumerate(points):
        best = max(precision for _, precision in points[index:])
        total += (recall - before) * best
        before = recall
    return total
