"""Sides of images and anchors that fit the data and the device.

An image keeps the size it has, within limits: below the smaller one objects are specks, above the
larger one memory and time go. Anchors begin at the size of the small objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clove_ssl.tasks.labels.samples import Sample

STEP = 32
SMALL_OBJECT = 16.0
"""Pixels; where one object in ten is smaller than this, images are enlarged."""
_LIMITS = {"gpu": (320, 800), "cpu": (192, 320)}
_ANCHORS = (8.0, 16.0, 32.0)
_JITTER = (0.8, 0.9, 1.0, 1.1, 1.2)


def choose_side(samples: Sequence[Sample], *, on_gpu: bool) -> int:
    """The length of the shorter side of images."""
    low, high = _LIMITS["gpu" if on_gpu else "cpu"]
    usual = float(np.median([min(s.width, s.height) for s in samples]))
    small = smallest_objects(samples)
    enlarged = usual * max(1.0, min(2.0, SMALL_OBJECT / small)) if small else usual
    return min(max(_rounded(enlarged), low), high)


def training_sides(side: int) -> tuple[int, ...]:
    """Sides around the one of tests, one of which is drawn for every training image."""
    return tuple(sorted({max(STEP, _rounded(side * share)) for share in _JITTER}))


def longest_side(samples: Sequence[Sample], side: int) -> int:
    """The limit of the longer side: that of nearly all images, and at most twice the shorter."""
    ratios = [max(s.width, s.height) / min(s.width, s.height) for s in samples]
    largest = max(training_sides(side))
    return min(2 * largest, STEP * math.ceil(largest * float(np.quantile(ratios, 0.95)) / STEP))


def choose_anchors(samples: Sequence[Sample], side: int) -> tuple[float, ...]:
    """Sizes of the anchors of the five levels of a pyramid."""
    usual = float(np.median([min(s.width, s.height) for s in samples]))
    small = (smallest_objects(samples) or SMALL_OBJECT) * side / usual
    first = min(_ANCHORS, key=lambda size: abs(math.log(size / small)))
    return tuple(first * 2**level for level in range(5))


def smallest_objects(samples: Sequence[Sample]) -> float:
    """The side of a square as large as an object that one in ten is smaller than; 0 for none."""
    areas = [
        (thing.box[2] - thing.box[0]) * (thing.box[3] - thing.box[1])
        for sample in samples
        for thing in sample.annotations
    ]
    return math.sqrt(float(np.quantile(areas, 0.1))) if areas else 0.0


def _rounded(length: float) -> int:
    return max(STEP, STEP * round(length / STEP))
