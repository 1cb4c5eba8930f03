"""The instance-level average precision of Cityscapes, by the rules of its own tools.

A detection belongs to the instance of its class with which it has the most in common, if that is
strictly more than the threshold; instances do not overlap, so there is one at most. The best
detection of an instance is right, others of the same instance are wrong. A detection of no
instance is wrong, unless more of it than the threshold lies on pixels that do not count: void,
groups, and instances of fewer than 100 pixels, which themselves are not to be found.

The average is a sum of steps: a precision holds half-way to the recalls before and after it, and
the last one is 1 at recall 0. A class without instances has no score (NaN) and counts in no mean.

Dimensions: K classes, T overlap thresholds, D detections, U numbers of a map of instances.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clove_ssl.errors import UserError
from clove_ssl.tasks.cityscapes.maps import PER_LABEL, THINGS, VOID, InstanceMap, read_instance_map
from clove_ssl.tasks.cityscapes.reader import CityscapesDataset
from clove_ssl.tasks.detection.coco_scores import mean_of_present
from clove_ssl.tasks.labels.rle import read_counts, whole_ranges
from clove_ssl.tasks.scoring.results import Record
from clove_ssl.tasks.scoring.scores import Curve

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bits = NDArray[np.bool_]

THRESHOLDS = np.arange(0.5, 1.0, 0.05)
_LEAST_PIXELS = 100
_NOBODY = -1


@dataclass(frozen=True)
class CityscapesScores:
    """Average precisions between 0 and 1."""

    table: Floats  # (K, T)
    objects: Integers  # (K,) instances that are to be found
    curves: tuple[Curve, ...]  # K, at the first threshold

    def summary(self) -> dict[str, float]:
        """The two scores that are reported."""
        return {"AP": mean_of_present(self.table), "AP50": mean_of_present(self.table[:, 0])}

    def by_class(self) -> dict[str, dict[str, float]]:
        """The same of every class."""
        return {
            name: {"AP": float(row.mean()), "AP50": float(row[0]), "objects": float(count)}
            for name, row, count in zip(THINGS, self.table, self.objects, strict=True)
        }


@dataclass(frozen=True)
class _Instances:
    """A map of instances, with pixels by column and numbers replaced by 0 to U - 1."""

    pixels: Integers  # (H * W,)
    numbers: Integers  # (U,)
    sizes: Integers  # (U,) pixels of each

    @property
    def labels(self) -> Integers:
        return np.where(self.numbers >= PER_LABEL, self.numbers // PER_LABEL, self.numbers)

    @property
    def counts(self) -> Bits:
        """Whether an instance is to be found: (U,)."""
        return (
            (self.numbers >= PER_LABEL)
            & (self.sizes >= _LEAST_PIXELS)
            & np.isin(self.labels, list(THINGS.values()))
        )


class _Detection(NamedTuple):
    """What is known about a detection once it was laid over its image."""

    category: int  # position in THINGS
    score: float
    overlap: float  # with the best instance or group of its class
    instance: int  # number of that instance in the set, or nobody where it does not count
    ignored: float  # share of pixels that do not count


class _Columns(NamedTuple):
    """Detections of one class."""

    score: Floats  # (D,)
    overlap: Floats  # (D,)
    instance: Integers  # (D,)
    ignored: Floats  # (D,)


def score_cityscapes(dataset: CityscapesDataset, predictions: Sequence[Record]) -> CityscapesScores:
    """Score predictions that :func:`~clove_ssl.tasks.scoring.results.check_results` accepts."""
    by_image: dict[int | str, list[Record]] = defaultdict(list)
    for record in predictions:
        by_image[record["image_id"]].append(record)
    found: list[_Detection] = []
    objects = np.zeros(len(THINGS), np.int64)
    for sample in dataset.samples:
        path = dataset.truth[sample.identifier]
        truth = read_instance_map(path)
        if truth.shape != (sample.height, sample.width):
            raise UserError(
                f"{path} has {truth.shape[1]} x {truth.shape[0]} pixels, but its image "
                f"{sample.width} x {sample.height}. Unpack the archive of gtFine again."
            )
        instances = _count_pixels(truth)
        first = int(objects.sum())
        found += _lay_over(instances, by_image[sample.identifier], first=first)
        labels = instances.labels[instances.counts]
        objects += [np.count_nonzero(labels == label) for label in THINGS.values()]
    columns = [_columns(found, category) for category in range(len(THINGS))]
    pairs = list(zip(columns, objects.tolist(), strict=True))
    return CityscapesScores(
        table=np.array([[_average(*pair, at) for at in THRESHOLDS.tolist()] for pair in pairs]),
        objects=objects,
        curves=tuple(_read_curve(*pair) for pair in pairs),
    )


def _count_pixels(truth: InstanceMap) -> _Instances:
    pixels = truth.T.ravel()
    sizes = np.bincount(pixels)
    numbers = np.flatnonzero(sizes)
    places = np.zeros(len(sizes), np.int64)
    places[numbers] = np.arange(len(numbers))
    return _Instances(places[pixels], numbers, sizes[numbers])


def _lay_over(
    instances: _Instances, records: Iterable[Record], *, first: int
) -> Iterable[_Detection]:
    """Compare detections with the map of their image, whose instances are numbered from first."""
    classes = {label: number for number, label in enumerate(THINGS.values())}
    is_void = np.isin(instances.numbers, list(VOID.values()))
    is_group, is_small = instances.numbers < PER_LABEL, instances.sizes < _LEAST_PIXELS
    counts, labels = instances.counts, instances.labels
    names = np.where(counts, first + np.cumsum(counts) - 1, _NOBODY)  # (U,)
    for record in records:
        pixels = instances.pixels[_places(record["segmentation"]["counts"])]
        if not len(pixels):
            continue
        # Instances do not overlap in Cityscapes, so one map of numbers holds all, and one count per
        # detection compares it with every instance.
        shared = np.bincount(pixels, minlength=len(names)) * 1.0  # (U,)
        own = shared * (labels == record["category_id"])
        overlap = own / (instances.sizes + len(pixels) - own)
        best = int(overlap.argmax())
        # A small group counts twice, as in the official tool.
        ignored = shared[is_void].sum() + own[is_group].sum() + own[is_small].sum()
        yield _Detection(
            category=classes[record["category_id"]],
            score=float(record["score"]),
            overlap=float(overlap[best]),
            instance=int(names[best]),
            ignored=float(ignored) / len(pixels),
        )


def _places(counts: str) -> Integers:
    """The pixels of a mask, counted column by column."""
    ends = np.cumsum(read_counts(counts))
    return whole_ranges(ends[0:-1:2], ends[1::2])


def _columns(found: Sequence[_Detection], category: int) -> _Columns:
    mine = [one for one in found if one.category == category]
    return _Columns(
        np.array([one.score for one in mine], np.float64),
        np.array([one.overlap for one in mine], np.float64),
        np.array([one.instance for one in mine], np.int64),
        np.array([one.ignored for one in mine], np.float64),
    )


def _average(found: _Columns, objects: int, threshold: float) -> float:
    if not objects:
        return float("nan")
    recall, precision = _curve(found, objects, threshold)  # recall falls
    # The official tool's integral: every point weighs half the distance between its neighbours.
    before, after = np.concatenate([recall[:1], recall]), np.concatenate([recall, [0.0]])
    widths = (before[:-1] - after[1:]) / 2
    return float(np.dot(precision, widths))


def _curve(found: _Columns, objects: int, threshold: float) -> tuple[Floats, Floats]:
    """Recall and precision at every score, the lowest first, and a last point at recall 0."""
    score, right = _count_hits(found, threshold)
    levels, level = np.unique(score, return_inverse=True)
    hits = np.bincount(level, weights=right, minlength=len(levels))[::-1].cumsum()[::-1]
    both = np.bincount(level, minlength=len(levels))[::-1].cumsum()[::-1]
    return np.append(hits / objects, 0.0), np.append(hits / both, 1.0)


def _count_hits(found: _Columns, threshold: float) -> tuple[Floats, Bits]:
    """The scores of detections that count, and whether they are right."""
    near = found.overlap > threshold
    of_instance = np.flatnonzero(near & (found.instance != _NOBODY))
    # Of several detections of an instance the surest is right, the others are wrong.
    order = of_instance[np.lexsort((-found.score[of_instance], found.instance[of_instance]))]
    is_best = np.diff(found.instance[order], prepend=_NOBODY) != 0
    strays = np.flatnonzero(~near & (found.ignored <= threshold))
    counted = np.concatenate([order, strays])
    return found.score[counted], np.concatenate([is_best, np.zeros(len(strays), bool)])


def _read_curve(found: _Columns, objects: int) -> Curve:
    if not objects:
        return Curve((), ())
    recall, precision = _curve(found, objects, float(THRESHOLDS[0]))
    return Curve(tuple(recall[::-1].tolist()), tuple(precision[::-1].tolist()))
