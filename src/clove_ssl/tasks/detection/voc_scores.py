"""Average precision of PASCAL VOC, by the rules of its development kit.

Boxes are x0, y0, x1, y1 with pixel edges on whole numbers, as the dataset readers
give them. The kit counts pixels from 1 and includes the last one, so x0 and y0 gain 1
here, and every side is "last - first + 1".

A detection looks at the object of its class and image that it overlaps most. With an
overlap strictly above the threshold it is right if that object is still free, wrong if
the object was taken by a higher score, and neither if the object is difficult. Equal
scores keep the order in which they were given.

A class without (easy) objects scores 0 by the 11-point rule. By the area rule it is NaN
when there are detections, and so is every mean it enters.

Scores of a range of sizes, which the kit does not have, follow COCO's idea: objects outside
the range count as difficult, and so do detections outside it that hit nothing.

Dimensions: G objects, D detections, K classes, T thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clove_ssl.tasks.labels.samples import Sample

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Rule = Literal["11-point", "area"]

THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))


@dataclass(frozen=True)
class VOCTruth:
    """The objects of a test set, in any order."""

    image: Integers  # (G,) number of the image
    category: Integers  # (G,) 0 to K - 1
    box: Floats  # (G, 4)
    difficult: NDArray[np.bool_]  # (G,)

    def __post_init__(self) -> None:
        _check_lengths(len(self.image), self.box, self.category, self.difficult)

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> VOCTruth:
        """The objects of samples; an image's number is its position."""
        pairs = [(image, thing) for image, s in enumerate(samples) for thing in s.annotations]
        return cls(
            image=np.array([image for image, _ in pairs], np.int64),
            category=np.array([thing.category for _, thing in pairs], np.int64),
            box=np.array([thing.box for _, thing in pairs], np.float64).reshape(-1, 4),
            difficult=np.array([thing.difficult for _, thing in pairs], bool),
        )


@dataclass(frozen=True)
class VOCDetections:
    """What a detector found, in any order; equal scores are ranked as they stand."""

    image: Integers  # (D,)
    category: Integers  # (D,)
    box: Floats  # (D, 4)
    score: Floats  # (D,)

    def __post_init__(self) -> None:
        _check_lengths(len(self.image), self.box, self.category, self.score)
        if not (np.isfinite(self.box).all() and np.isfinite(self.score).all()):
            raise ValueError("detections must have finite boxes and scores")


@dataclass(frozen=True)
class VOCScores:
    """Average precisions between 0 and 1."""

    table: Floats  # (K, T) by class and overlap threshold of THRESHOLDS
    objects: Integers  # (K,) objects that are to be found
    curves: tuple[tuple[Floats, Floats], ...]  # K x recall and precision (D,) at the first one

    @property
    def ap(self) -> float:
        """Mean over classes and thresholds."""
        return float(self.table.mean())

    @property
    def ap50(self) -> float:
        """Mean over classes at an overlap of one half."""
        return float(self.table[:, THRESHOLDS.index(0.5)].mean())

    @property
    def ap75(self) -> float:
        """Mean over classes at an overlap of three quarters."""
        return float(self.table[:, THRESHOLDS.index(0.75)].mean())


@dataclass(frozen=True)
class _Match:
    """The best object of every detection of a class, the highest score first."""

    overlap: Floats  # (D,) -inf where the image holds no object of the class
    chosen: Integers  # (D,) position of the object
    area: Floats  # (D,) of the detection
    difficult: NDArray[np.bool_]  # (G,)
    object_area: Floats  # (G,)


@dataclass(frozen=True)
class VOCMatches:
    """Which object every detection looks at; all rules and sizes are read off this."""

    by_class: tuple[_Match, ...]  # K

    def scores(
        self, rule: Rule = "11-point", *, sizes: tuple[float, float] = (0.0, math.inf)
    ) -> VOCScores:
        """Average precision of every class at every threshold.

        Only areas in ``sizes``, the second one not included, count.
        """
        average = _eleven_points if rule == "11-point" else _area
        table = np.zeros((len(self.by_class), len(THRESHOLDS)))
        objects, curves = [], []
        for row, match in zip(table, self.by_class, strict=True):
            ignored = match.difficult | _outside(match.object_area, sizes)
            by_threshold = [_curve(match, ignored, at, sizes) for at in THRESHOLDS]
            row[:] = [average(recall, precision) for recall, precision in by_threshold]
            curves.append(by_threshold[0])
            objects.append(np.count_nonzero(~ignored))
        return VOCScores(table, np.array(objects, np.int64), tuple(curves))


def match_voc(
    truth: VOCTruth,
    detections: VOCDetections,
    *,
    classes: int,
    detectron2_rounding: bool = False,
) -> VOCMatches:
    """Find the object that every detection overlaps most.

    Detectron2 writes scores with 3 decimals and boxes with 1 before it scores them;
    ``detectron2_rounding`` does the same.
    """
    _check_categories(truth.category, detections.category, classes)
    objects = _one_based(truth.box)
    boxes, scores = _one_based(detections.box), detections.score.astype(np.float64)
    if detectron2_rounding:
        boxes, scores = _rounded(boxes, 1), _rounded(scores, 3)
    matches = []
    for category in range(classes):
        mine = truth.category == category
        found = np.flatnonzero(detections.category == category)
        # Stable, since rounded scores tie often, and their order decides who is right.
        order = found[np.argsort(-scores[found], kind="stable")]
        overlap, chosen = _best_objects(
            truth.image[mine], objects[mine], images=detections.image[order], boxes=boxes[order]
        )
        matches.append(
            _Match(
                overlap, chosen, _areas(boxes[order]), truth.difficult[mine], _areas(objects[mine])
            )
        )
    return VOCMatches(tuple(matches))


def _best_objects(
    objects_of: Integers, objects: Floats, *, images: Integers, boxes: Floats
) -> tuple[Floats, Integers]:
    """Overlap with and position of the first of the best objects in the image: (D,), (D,)."""
    overlap, chosen = np.full(len(boxes), -np.inf), np.zeros(len(boxes), np.int64)
    by_image = np.argsort(objects_of, kind="stable")  # (G,)
    low, high = (np.searchsorted(objects_of[by_image], images, side) for side in ("left", "right"))
    some = np.flatnonzero(high > low)  # detections in images with objects
    if not len(some):
        return overlap, chosen
    counts = (high - low)[some]
    first = np.cumsum(counts) - counts  # where the pairs of a detection begin
    pair = np.arange(counts.sum()) - np.repeat(first, counts)  # number within those of a detection
    candidate = by_image[np.repeat(low[some], counts) + pair]
    shares = _overlaps(np.repeat(boxes[some], counts, axis=0), objects[candidate])
    best = np.maximum.reduceat(shares, first)
    # The first of equal ones, as a loop with a strict comparison would find it.
    places = np.where(shares == np.repeat(best, counts), pair, len(objects))
    overlap[some] = best
    chosen[some] = candidate[first + np.minimum.reduceat(places, first)]
    return overlap, chosen


def _overlaps(boxes: Floats, others: Floats) -> Floats:
    """Intersection over union of pairs of boxes (N, 4), from 1 and inclusive: (N,)."""
    first, last = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    sides = np.maximum(last - first + 1, 0)  # (N, 2)
    shared = sides[:, 0] * sides[:, 1]
    share: Floats = shared / (_areas(boxes) + _areas(others) - shared)
    return share


def _curve(
    match: _Match, ignored: NDArray[np.bool_], threshold: float, sizes: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Recall and precision after every detection, the highest score first."""
    hits = np.flatnonzero(match.overlap > threshold)
    easy = hits[~ignored[match.chosen[hits]]]
    # The best detection of an object is right, all others that chose it are wrong: the kit does not
    # let them look for another object.
    _, firsts = np.unique(match.chosen[easy], return_index=True)
    right = np.zeros(len(match.overlap))
    wrong = np.where(_outside(match.area, sizes), 0.0, 1.0)
    # Whoever chose a difficult object counts neither way.
    wrong[hits] = 0
    wrong[easy] = 1
    right[easy[firsts]], wrong[easy[firsts]] = 1, 0
    right, wrong = np.cumsum(right), np.cumsum(wrong)
    objects = np.count_nonzero(~ignored)
    recall = right / objects if objects else np.full(len(right), np.nan)
    # A match with a difficult object may come first, when nothing was counted yet.
    return recall, right / np.maximum(right + wrong, np.finfo(np.float64).eps)


def _eleven_points(recall: Floats, precision: Floats) -> float:
    """The mean of the best precision at recalls of at least 0, 0.1, ..., 1."""
    total = 0.0
    # The very numbers of the kit: 0.3 is 0.30000000000000004 here, and a recall of just 0.3 is
    # below.
    for least in np.arange(0.0, 1.1, 0.1):
        total += float(precision[recall >= least].max(initial=0.0)) / 11
    return total


def _area(recall: Floats, precision: Floats) -> float:
    """The area under the curve whose precision never rises with recall."""
    recall = np.concatenate([[0.0], recall, [1.0]])
    precision = np.concatenate([[0.0], precision, [0.0]])
    # From the right: a precision that rises with recall later on would have been free to take.
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall) * falling[1:]))


def _areas(boxes: Floats) -> Floats:
    """Pixels of boxes (N, 4), from 1 and inclusive: (N,)."""
    areas: Floats = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    return areas


def _outside(areas: Floats, sizes: tuple[float, float]) -> NDArray[np.bool_]:
    outside: NDArray[np.bool_] = (areas < sizes[0]) | (areas >= sizes[1])
    return outside


def _one_based(boxes: NDArray[np.floating]) -> Floats:
    shifted: Floats = np.asarray(boxes, np.float64) + np.array([1.0, 1.0, 0.0, 0.0])
    return shifted


def _rounded(values: Floats, decimals: int) -> Floats:
    """Rounded as a printed number is; numpy's own rounding errs where a product is inexact."""
    flat = [round(value, decimals) for value in values.ravel().tolist()]
    return np.array(flat, np.float64).reshape(values.shape)


def _check_lengths(length: int, box: Floats, *columns: NDArray[np.generic]) -> None:
    if box.shape != (length, 4) or any(column.shape != (length,) for column in columns):
        shapes = [box.shape, *(column.shape for column in columns)]
        raise ValueError(f"expected {length} boxes and columns of that length, got {shapes}")


def _check_categories(truth: Integers, found: Integers, classes: int) -> None:
    every = np.concatenate([truth, found])
    if every.size and not 0 <= every.min() <= every.max() < classes:
        raise ValueError(f"classes {every.min()} to {every.max()} of {classes} classes")
