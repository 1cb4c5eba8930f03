"""The average precision of LVIS, for boxes and masks, by the rules of its own tools.

Of the 300 best detections of an image only those count whose class was found there or is known to
be absent. A detection that hits nothing is no mistake where a class is incomplete. Everything
else is COCO's rule, without crowds; scores of rare, common and frequent classes are added.

Objects and detections without area do not exist for these rules. For masks, the size of a
detection is that of its mask, also where a box stands beside it.

Dimensions: I images, K classes, G objects, D detections, A ranges of sizes, T overlap
thresholds, R recall steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from clove_ssl.tasks.detection.coco_scores import COCOScores, mean_of_present
from clove_ssl.tasks.labels.rle import places_in_rows
from clove_ssl.tasks.lvis.federated import (
    Bits,
    Floats,
    Integers,
    Matches,
    Things,
    find_pairs,
    match,
)
from clove_ssl.tasks.lvis.overlaps import Boxes, Masks, Owned, Shapes
from clove_ssl.tasks.lvis.reader import FREQUENCIES, Frequency, LVISDataset
from clove_ssl.tasks.scoring.results import Record

LIMIT = 300
"""Detections of an image that count."""

_THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
_SIZES = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}


@dataclass(frozen=True)
class LVISScores(COCOScores):
    """COCO's tables, and the scores of LVIS that are read off them."""

    frequencies: tuple[Frequency, ...] = ()  # (K,)

    def summary(self) -> dict[str, float]:
        """AP, AP50, AP75, AP by size and by frequency, and recalls."""
        table, groups = self.precision[..., 0, -1], np.array(self.frequencies)  # (T, R, K), (K,)
        by_frequency = {
            f"AP{letter}": mean_of_present(table[:, :, groups == letter]) for letter in FREQUENCIES
        }
        return self._scores(slice(None)) | by_frequency | self._recalls()

    def curves_by_frequency(self) -> dict[str, tuple[Floats, Floats]]:
        """Recalls (R,) and the mean precision (R,) of rare, common and frequent classes."""
        table, groups = self.precision[0, :, :, 0, -1], np.array(self.frequencies)  # (R, K), (K,)
        measured = ~np.isnan(table[0])  # (K,)
        chosen = {name: (groups == letter) & measured for letter, name in FREQUENCIES.items()}
        return {
            name: (self.recalls, table[:, some].mean(axis=1))
            for name, some in chosen.items()
            if some.any()
        }


@dataclass(frozen=True)
class _Objects(Things):
    """All objects, by class and image."""

    category: Integers  # (G,)
    owned: list[Owned]  # G


@dataclass(frozen=True)
class _Found(Things):
    """Detections that count, by class, image and falling score."""

    category: Integers  # (D,)
    score: Floats  # (D,)
    records: list[Record]  # D


class _Curve(NamedTuple):
    """What is read off the detections of one class in one range of sizes."""

    precision: Floats  # (T, R)
    score: Floats  # (T, R)
    recall: Floats  # (T,)


def score_lvis(
    dataset: LVISDataset, predictions: Sequence[Record], *, kind: Literal["box", "mask"]
) -> LVISScores:
    """Score predictions that :func:`~clove_ssl.tasks.scoring.results.check_results` accepts.

    The samples of the dataset are in the order of their numbers, as the reader gives them.
    """
    # Detections that do not count are dropped before any overlap is computed: of 300 per image most
    # have a class that nobody looked for there.
    shapes: Shapes = Boxes() if kind == "box" else Masks()
    objects = _gather_objects(dataset)
    found = _select(dataset, objects, predictions, shapes)
    overlaps = shapes.overlaps(found.records, objects.owned)
    pairs = find_pairs(objects, found, overlaps, least=float(_THRESHOLDS[0]))
    outside = _outside(objects.area)  # (G, A)
    matches = match(objects, found, pairs, left_out=outside, thresholds=_THRESHOLDS)
    incomplete = np.isin(found.group, _listed_groups(dataset, "incomplete"))  # (D,)
    spared = _outside(found.area) | incomplete[:, None]  # (D, A)
    # After the matching: a detection of the wrong size may still take an object of the right one.
    matches.left_out[:] |= ~matches.hit & spared[:, :, None]
    return _tabulate(dataset, objects, found, matches, counting=~outside, kind=kind)


def _gather_objects(dataset: LVISDataset) -> _Objects:
    owned, groups = [], []
    for number, sample in enumerate(dataset.samples):
        for thing in sample.annotations:
            if thing.area > 0:
                owned.append((thing, sample))
                groups.append(thing.category * len(dataset.samples) + number)
    group = np.array(groups, np.int64)
    order = np.argsort(group, kind="stable")
    owned = [owned[number] for number in order.tolist()]
    return _Objects(
        group=group[order],
        area=np.array([thing.area for thing, _ in owned], np.float64),
        category=group[order] // len(dataset.samples),
        owned=owned,
    )


def _select(
    dataset: LVISDataset, objects: _Objects, records: Sequence[Record], shapes: Shapes
) -> _Found:
    """The best detections of every image, if somebody looked for their class there."""
    numbers = {sample.identifier: number for number, sample in enumerate(dataset.samples)}
    classes = {identifier: number for number, identifier in enumerate(dataset.category_ids)}
    image = np.array([numbers[record["image_id"]] for record in records], np.int64)
    category = np.array([classes[record["category_id"]] for record in records], np.int64)
    score = np.array([record["score"] for record in records], np.float64)
    group = category * len(dataset.samples) + image
    known = np.concatenate([objects.group, _listed_groups(dataset, "absent")])
    # The best 300 of an image first, over all classes, then those that count: in LVIS's own order.
    kept = np.flatnonzero(_among_the_best(image, score) & np.isin(group, known))
    kept = kept[np.lexsort((-score[kept], group[kept]))]
    area = shapes.areas([records[number] for number in kept.tolist()])
    kept, area = kept[area > 0], area[area > 0]
    return _Found(
        group=group[kept],
        area=area,
        category=category[kept],
        score=score[kept],
        records=[records[number] for number in kept.tolist()],
    )


def _among_the_best(image: Integers, score: Floats) -> Bits:
    """Whether a detection is one of the best of its image; of equal ones the first are."""
    order = np.lexsort((-score, image))
    best = np.zeros(len(image), bool)
    best[order[places_in_rows(image[order]) < LIMIT]] = True
    return best


def _listed_groups(dataset: LVISDataset, which: Literal["absent", "incomplete"]) -> Integers:
    """Groups of classes and images that the annotators listed."""
    listed = [
        category * len(dataset.samples) + number
        for number, sample in enumerate(dataset.samples)
        for category in getattr(dataset.known[sample.identifier], which)
    ]
    return np.array(listed, np.int64)


def _outside(area: Floats) -> Bits:
    """Whether sizes (N,) lie outside the ranges: (N, A)."""
    low, high = np.array(list(_SIZES.values())).T
    outside: Bits = (area[:, None] < low) | (area[:, None] > high)
    return outside


def _tabulate(
    dataset: LVISDataset,
    objects: _Objects,
    found: _Found,
    matches: Matches,
    *,
    counting: Bits,  # (G, A) objects that are to be found
    kind: Literal["box", "mask"],
) -> LVISScores:
    classes, sizes = len(dataset.class_names), len(_SIZES)
    shape = (len(_THRESHOLDS), len(_RECALLS), classes, sizes, 1)
    precision, score = np.full(shape, np.nan), np.full(shape, np.nan)
    recall = np.full((len(_THRESHOLDS), classes, sizes, 1), np.nan)
    order = np.lexsort((-found.score, found.category))  # equal ones stay in the order of images
    of_class = np.searchsorted(found.category, np.arange(classes + 1))
    objects_of = np.searchsorted(objects.category, np.arange(classes + 1))
    for category in range(classes):
        rows = order[of_class[category] : of_class[category + 1]]
        counts = counting[objects_of[category] : objects_of[category + 1]].sum(axis=0)  # (A,)
        hit, judged = matches.hit[rows], ~matches.left_out[rows]  # (n, A, T)
        for area in np.flatnonzero(counts):
            right, wrong = hit[:, area] & judged[:, area], ~hit[:, area] & judged[:, area]
            curve = _read_curve(right, wrong, found.score[rows], objects=int(counts[area]))
            precision[:, :, category, area, 0] = curve.precision
            score[:, :, category, area, 0] = curve.score
            recall[:, category, area, 0] = curve.recall
    return LVISScores(
        kind=kind,
        class_names=dataset.class_names,
        sizes=tuple(_SIZES),
        limits=(LIMIT,),
        thresholds=_THRESHOLDS,
        recalls=_RECALLS,
        precision=precision,
        score=score,
        recall=recall,
        frequencies=dataset.frequencies,
    )


def _read_curve(right: Bits, wrong: Bits, score: Floats, *, objects: int) -> _Curve:
    """Right and wrong detections (n, T), the best first, to a curve at fixed recalls."""
    hits, misses = np.cumsum(right, axis=0), np.cumsum(wrong, axis=0)  # (n, T)
    recall = hits / objects
    # The smallest step above 1, as in the official tools, so that scores agree to the last digit.
    precision = hits / (misses + hits + np.spacing(1))
    falling = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    shape = (right.shape[1], len(_RECALLS))
    curve = _Curve(np.zeros(shape), np.zeros(shape), np.zeros(shape[0]))
    if len(right):
        curve.recall[:] = recall[-1]
    for threshold, column in enumerate(recall.T):
        # The first detection that reaches a recall; beyond the last one precision is 0.
        place = np.searchsorted(column, _RECALLS, side="left")  # (R,)
        reached = place < len(column)
        curve.precision[threshold, reached] = falling[place[reached], threshold]
        curve.score[threshold, reached] = score[place[reached]]
    return curve
