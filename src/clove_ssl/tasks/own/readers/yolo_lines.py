"""Lines of YOLO's label files: a class, and a box, a polygon, or a box with keypoints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clove_ssl.errors import UserError, counted
from clove_ssl.tasks.labels.samples import Annotation, Keypoints
from clove_ssl.tasks.own.dataset import Problems
from clove_ssl.tasks.own.readers.files import LARGEST_LABELS, read_text
from clove_ssl.tasks.own.readers.objects import MOST_CORNERS, NO_NUMBERS, Size, make_object

DECIMALS = 2
"""Places are rounded to a hundredth of a pixel."""


@dataclass(frozen=True)
class Shape:
    """What the numbers of a line mean besides class and box."""

    points: int = 0
    numbers: int = 3  # of a point: x, y, and whether it is seen

    @property
    def length(self) -> int:
        """Numbers of a line with keypoints."""
        return 5 + self.points * self.numbers


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a label file that hold something, with their numbers."""
    for number, line in enumerate(read_text(path, largest=LARGEST_LABELS).splitlines(), start=1):
        if line.split():
            yield number, line.split()


def check_classes(
    rows: Mapping[Path, Sequence[tuple[int, list[str]]]], labels: Mapping[Path, Path], count: int
) -> None:
    """Refuse classes that have no name, and say so where counting seems to start at 1."""
    seen: dict[int, str] = {}
    for image, lines in rows.items():
        for number, words in lines:
            where = f"Line {number} of {labels[image]}"
            value = _class(words[0], where)
            seen.setdefault(value, where)
    largest = max(seen, default=-1)
    if largest < count:
        return
    hint = "Correct the line, or name all classes."
    if largest == count and 0 not in seen:
        hint = "They seem to count from 1; expected numbers from 0, so subtract 1 from all."
    raise UserError(
        f"{seen[largest]} has the class {largest}, but {count} classes are named, which count from "
        f"0 to {count - 1}. {hint}"
    )


def _class(word: str, where: str) -> int:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not (0 <= value < 1e6 and value.is_integer()):
        raise UserError(
            f"{where} begins with {word[:40]!r}; expected the number of a class, from 0."
        )
    return int(value)


def read_object(
    row: tuple[int, list[str]], shape: Shape, size: Size, path: Path, problems: Problems
) -> Annotation | None:
    """The object of a line, or None where it is no object in the image."""
    number, words = row
    where = f"line {number} of {path}"
    values = _numbers(words[1:], where)
    category = _class(words[0], where)
    height, width = size
    if not all(map(math.isfinite, values)):
        problems.add(NO_NUMBERS, where)
        return None
    if shape.points and len(words) == shape.length:
        points = _keypoints(values[4:], shape, size)
        return make_object(
            category, size, problems, where, box=_box(values, size), keypoints=points
        )
    if len(values) == 4:
        return make_object(category, size, problems, where, box=_box(values, size))
    if len(values) < 6 or len(values) % 2 or len(values) > 2 * MOST_CORNERS:
        more = f", or {shape.length} with keypoints" if shape.points else ""
        raise UserError(
            f"L{where[1:]} has {counted(len(words), 'number')}; expected 5 (class, x, y, w, h), or "
            f"a class and x, y of 3 corners or more{more}. Correct the line."
        )
    limits = (width, height)
    outline = [round(value * limits[at % 2], DECIMALS) for at, value in enumerate(values)]
    return make_object(category, size, problems, where, polygons=[outline])


def _numbers(words: Sequence[str], where: str) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        raise UserError(f"L{where[1:]} has a word that is no number. Correct it.") from None
    if any(abs(value) > 20 for value in values[:4]):
        raise UserError(
            f"L{where[1:]} has the place {max(values[:4], key=abs):g}; expected shares of "
            "the image's width and height, from 0 to 1, not pixels. Divide by the image's sides."
        )
    return values


def _box(values: Sequence[float], size: Size) -> tuple[float, float, float, float]:
    height, width = size
    x, y, w, h = values[:4]
    edges = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
    x0, y0, x1, y1 = (round(edge, DECIMALS) for edge in edges)
    return x0, y0, x1, y1


def _keypoints(values: Sequence[float], shape: Shape, size: Size) -> Keypoints:
    """Points in pixels; COCO's rule that a point names a pixel holds for the others, too."""
    height, width = size
    points = []
    for at in range(0, len(values), shape.numbers):
        x, y = values[at] * width - 0.5, values[at + 1] * height - 0.5
        inside = 0 <= values[at] <= 1 and 0 <= values[at + 1] <= 1
        there = inside and (values[at] > 0 or values[at + 1] > 0)
        seen = 2 if shape.numbers == 2 else min(max(int(values[at + 2]), 0), 2)
        points.append((x, y, seen) if there and seen else (0.0, 0.0, 0))
    return tuple(points)
