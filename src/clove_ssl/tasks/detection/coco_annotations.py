"""One annotation of a COCO file: its values, or what is wrong with them."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clove_ssl.tasks.labels.rle import RLE, read_counts
from clove_ssl.tasks.labels.samples import Annotation, Box, Keypoints, Polygons

SLACK = 1.0
"""Pixels that a box may leave the image by; files round their numbers."""

_NUMBERS = {int, float}  # text and truth values can be turned into numbers, but are none


class Faulty(Exception):
    """Something is wrong with an annotation."""


@dataclass(frozen=True)
class Place:
    """What an annotation refers to."""

    width: int
    height: int
    category: int  # 0 to K - 1
    keypoints: int  # of its class; 0 when the class names none


def read_annotation(entry: Mapping[str, Any], place: Place) -> Annotation:
    """The values of an entry, or :class:`Faulty`."""
    box = _read_box(entry.get("bbox"), place)
    rounded = single_precision_corners(entry["bbox"])
    area = _read_area(entry, box)
    if entry.get("iscrowd", 0) not in (0, 1):
        raise Faulty(f"has iscrowd {entry['iscrowd']!r}; expected 0 or 1.")
    return Annotation(
        box=box,
        category=place.category,
        area=area,
        identifier=entry["id"],
        crowd=bool(entry.get("iscrowd", 0)),
        mask=_read_mask(entry.get("segmentation"), place),
        keypoints=_read_keypoints(entry.get("keypoints"), place),
        target_box=None if rounded == box else rounded,
    )


def _read_area(entry: Mapping[str, Any], box: Box) -> float:
    x0, y0, x1, y1 = box
    value = entry.get("area", (x1 - x0) * (y1 - y0))
    if type(value) not in _NUMBERS or not 0 <= value <= sys.float_info.max:
        raise Faulty(f"has the area {repr(value)[:80]}; expected one number of pixels.")
    return float(value)


def _read_box(values: Any, place: Place) -> Box:
    numbers = _numbers(values, "bbox")
    if len(numbers) != 4:
        raise Faulty(f"has the bbox {values!r}; expected x, y, width, height.")
    x, y, width, height = numbers
    if width <= 0 or height <= 0:
        raise Faulty(f"has a bbox without area, {values!r}; expected a width and height above 0.")
    leaves = max(-x, -y, x + width - place.width, y + height - place.height)
    if leaves > SLACK:
        raise Faulty(
            f"has the bbox {values!r}, which leaves its image of {place.width} x {place.height} "
            f"pixels by {leaves:g}."
        )
    return x, y, x + width, y + height


def single_precision_corners(box: Sequence[float]) -> Box:
    """The corners of x, y, width, height as Detectron2 has them: added in single precision.

    An anchor that ties for the best overlap with an object loses by the last bit of its box, so
    detectors learn from these corners. Scores keep those of the file, as COCO's evaluator does.
    """
    # The sum of two singles is exact in double precision, so it is rounded once, as theirs is.
    x, y, width, height = array("f", box)
    left, top, right, bottom = array("f", (x, y, x + width, y + height))
    return left, top, right, bottom


def _read_mask(value: Any, place: Place) -> Polygons | RLE | None:
    if isinstance(value, Mapping):
        return _read_rle(value, place)
    if not value:
        return None
    if not isinstance(value, list):
        raise Faulty(
            f"has a segmentation of type {type(value).__name__}; expected polygons or RLE."
        )
    polygons = tuple(_numbers(polygon, "polygon") for polygon in value)
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            raise Faulty(
                f"has a polygon of {len(polygon)} numbers; expected x and y of at least 3 corners."
            )
        if _is_outside(polygon[0::2], place.width) or _is_outside(polygon[1::2], place.height):
            raise Faulty(
                f"has a polygon outside of its image of {place.width} x {place.height} pixels."
            )
        leaves = max(_leaves(polygon[0::2], place.width), _leaves(polygon[1::2], place.height))
        if leaves > max(place.width, place.height):
            raise Faulty(
                f"has a polygon that leaves its image of {place.width} x {place.height} pixels by "
                f"{leaves:g}, more than the image is long."
            )
    return polygons


def _leaves(places: tuple[float, ...], length: int) -> float:
    """How far the farthest place is outside; below 0 where all are inside."""
    return max(-min(places), max(places) - length)


def _is_outside(places: tuple[float, ...], length: int) -> bool:
    return max(places) < -SLACK or min(places) > length + SLACK


def _read_rle(value: Mapping[str, Any], place: Place) -> RLE:
    if value.get("size") != [place.height, place.width]:
        raise Faulty(
            f"has an RLE of size {value.get('size')}; expected the height and width of its "
            f"image, {[place.height, place.width]}."
        )
    counts = value.get("counts")
    try:
        runs = read_counts(counts) if isinstance(counts, str) else _whole_numbers(counts)
        return RLE(place.height, place.width, runs)
    except ValueError as error:
        raise Faulty(f"has a damaged RLE: {error}.") from None


def _read_keypoints(values: Any, place: Place) -> Keypoints | None:
    if values is None:
        return None
    numbers = _numbers(values, "keypoints")
    expected = f"{3 * place.keypoints}" if place.keypoints else "a multiple of 3"
    if len(numbers) % 3 or (place.keypoints and len(numbers) != 3 * place.keypoints):
        raise Faulty(f"has {len(numbers)} keypoint numbers; expected {expected} (x, y, v of each).")
    points = zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True)
    found = []
    for number, (x, y, v) in enumerate(points):
        if v not in (0, 1, 2):
            raise Faulty(f"has visibility {v:g} at keypoint {number}; expected 0, 1 or 2.")
        leaves = max(_leaves((x,), place.width), _leaves((y,), place.height))
        if v and leaves > SLACK:
            raise Faulty(
                f"has keypoint {number} at {x:g}, {y:g}, which leaves its image of {place.width} x "
                f"{place.height} pixels by {leaves:g}."
            )
        found.append((x, y, int(v)))
    return tuple(found)


def _whole_numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
        raise ValueError("counts are neither text nor a list of whole numbers")
    return tuple(values)


def _numbers(values: Any, what: str) -> tuple[float, ...]:
    if not isinstance(values, list) or not set(map(type, values)) <= _NUMBERS:
        raise Faulty(f"has the {what} {values!r}; expected a list of numbers.")
    try:
        numbers = tuple(map(float, values))
    except OverflowError:
        raise Faulty(f"has the {what} {values!r}; expected numbers of pixels.") from None
    if not all(math.isfinite(number) for number in numbers):
        raise Faulty(f"has the {what} {values!r}; expected finite numbers.")
    return numbers
