"""DensePose average precision: by geodesic point similarity (GPS), by GPS and mask, by mask.

Rules are COCO's, with these differences of the DensePose project's evaluator: the 20 best
detections of an image count; persons without labels are ignored, and so is everything in an image
where nobody has labels; and a detection that matches nobody, but whose box agrees by 0.8 with that
of a person nobody matched, is ignored if that person is. The last rule looks at the matches of the
strictest threshold and holds for all thresholds.

Dimensions: T thresholds, D detections and G persons of an image, R recall steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clove_ssl.tasks.densepose.similarity import (
    Bits,
    FoundPerson,
    LabelledPerson,
    Similarities,
    compare,
)
from clove_ssl.tasks.densepose.surfaces import Floats, Ints, Surface
from clove_ssl.tasks.detection.coco_scores import COCOScores

Kind = Literal["gpsm", "gps", "segm"]

DETECTIONS = 20
"""Detections of an image that count."""
THRESHOLDS: Floats = np.linspace(0.5, 0.95, 10)
RECALLS: Floats = np.linspace(0, 1, 101)
SIZES = {"all": (0.0, 1e10), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}

_SAME_BOX = 0.8


@dataclass(frozen=True)
class ImagePersons:
    """What is in an image, and what was found there."""

    size: tuple[int, int]  # H, W
    truth: tuple[LabelledPerson, ...]
    found: tuple[FoundPerson, ...]


@dataclass(frozen=True)
class Matches:
    """What became of the detections of an image."""

    matched: Ints  # (T, D) rows of the persons, -1 for nobody
    ignored: Bits  # (T, D) neither right nor wrong


@dataclass(frozen=True)
class _ComparedImage:
    """An image with all that does not depend on the kind of score."""

    truth: tuple[LabelledPerson, ...]
    scores: Floats  # (D,) falling
    areas: Floats  # (D,) of the boxes
    similar: Similarities


def score_densepose(
    images: Iterable[ImagePersons], *, kinds: Sequence[Kind], surface: Surface | None
) -> dict[Kind, COCOScores]:
    """Average precision by every kind; only "segm" can do without a surface."""
    if surface is None and set(kinds) - {"segm"}:
        raise ValueError("point similarity needs a surface")
    judged = [_compare_image(image, surface) for image in images]
    return {kind: _tables(judged, kind) for kind in kinds}


def similarity(pairs: Similarities, kind: Kind) -> Floats:
    """What is compared with the thresholds: (D, G)."""
    if kind == "gps":
        return pairs.points
    # The geometric mean: a person must be found in shape and on the surface, not in one of them.
    return pairs.masks if kind == "segm" else np.sqrt(pairs.points * pairs.masks)


def match(
    similar: Floats,  # (D, G) detections by falling score
    boxes: Floats,  # (D, G) overlaps of boxes
    *,
    ignored: Bits,  # (G,)
    crowds: Bits,  # (G,)
    thresholds: Floats = THRESHOLDS,
) -> Matches:
    """Let every detection, the best first, take the most similar person that is left."""
    count, persons = similar.shape
    matched = np.full((len(thresholds), count), -1)
    set_aside = np.full(matched.shape, bool(ignored.all()))
    # Of equally similar persons the last one is taken, and those who count before all ignored.
    order = np.argsort(ignored, kind="stable")
    for row, threshold in enumerate(thresholds):
        free = np.ones(persons, bool)
        for number in range(count):
            person = _best(similar[number], free | crowds, order, ignored, at_least=threshold)
            if person >= 0:
                matched[row, number], set_aside[row, number] = person, ignored[person]
                free[person] = False
    for number in np.flatnonzero(matched[-1] < 0).tolist():
        reached = (free | crowds)[order] & (boxes[number, order] >= _SAME_BOX)
        if reached.any():
            person = _last_largest(boxes[number], order[reached])
            set_aside[:, number] = ignored[person]
            if ignored[person]:
                matched[-1, number], free[person] = person, False
    return Matches(matched, set_aside)


def _best(similar: Floats, free: Bits, order: Ints, ignored: Bits, *, at_least: float) -> int:
    """The most similar free person, -1 for none; an ignored one only if there is no other."""
    limit = min(at_least, 1 - 1e-10)
    reached = order[(free & (similar >= limit) & (similar > 0))[order]]
    for group in (reached[~ignored[reached]], reached[ignored[reached]]):
        if len(group):
            return _last_largest(similar, group)
    return -1


def _last_largest(values: Floats, rows: Ints) -> int:
    chosen = values[rows]
    # As COCO's loop does, which goes on to the next where it is at least as good.
    return int(rows[len(rows) - 1 - int(chosen[::-1].argmax())])


def _compare_image(image: ImagePersons, surface: Surface | None) -> _ComparedImage:
    order = np.argsort([-each.score for each in image.found], kind="stable")[:DETECTIONS]
    found = [image.found[number] for number in order]
    return _ComparedImage(
        image.truth,
        np.array([each.score for each in found], np.float64),
        np.array([each.area for each in found], np.float64),
        compare(found, image.truth, image_size=image.size, surface=surface),
    )


def _tables(images: Sequence[_ComparedImage], kind: Kind) -> COCOScores:
    shape = (len(THRESHOLDS), len(RECALLS), 1, len(SIZES), 1)
    precision, score = np.full(shape, np.nan), np.full(shape, np.nan)
    recall = np.full((len(THRESHOLDS), 1, len(SIZES), 1), np.nan)
    for column, limits in enumerate(SIZES.values()):
        persons, scores, right, wrong = _counted(images, kind, limits)
        if persons:
            for row in range(len(THRESHOLDS)):
                curve = _curve(right[row], wrong[row], scores, persons)
                precision[row, :, 0, column, 0], score[row, :, 0, column, 0] = curve[:2]
                recall[row, 0, column, 0] = curve[2]
    return COCOScores(
        kind="keypoints",  # the same scores are read off: one limit, no small persons
        class_names=("person",),
        sizes=tuple(SIZES),
        limits=(DETECTIONS,),
        thresholds=THRESHOLDS,
        recalls=RECALLS,
        precision=precision,
        score=score,
        recall=recall,
    )


def _counted(
    images: Sequence[_ComparedImage], kind: Kind, limits: tuple[float, float]
) -> tuple[int, Floats, Bits, Bits]:
    """Persons to find; scores (N,) of all detections; which are right and wrong (T, N)."""
    persons = 0
    scores: list[Floats] = [np.zeros(0)]
    right: list[Bits] = [np.zeros((len(THRESHOLDS), 0), bool)]
    wrong: list[Bits] = [np.zeros((len(THRESHOLDS), 0), bool)]
    for image in images:
        ignored = np.array([_is_ignored(person, limits) for person in image.truth], bool)
        crowds = np.array([person.crowd for person in image.truth], bool)
        persons += int(np.count_nonzero(~ignored))
        result = match(
            similarity(image.similar, kind), image.similar.boxes, ignored=ignored, crowds=crowds
        )
        found = result.matched >= 0
        outside = (image.areas < limits[0]) | (image.areas > limits[1])
        counts = ~(result.ignored | (~found & outside))
        scores.append(image.scores)
        right.append(found & counts)
        wrong.append(~found & counts)
    return persons, np.concatenate(scores), np.hstack(right), np.hstack(wrong)


def _is_ignored(person: LabelledPerson, areas: tuple[float, float]) -> bool:
    return person.points is None or not areas[0] <= person.area <= areas[1]


def _curve(
    right: Bits, wrong: Bits, scores: Floats, persons: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Precision and score (R,) where a recall is first reached, and the final recall."""
    order = np.argsort(-scores, kind="stable")
    hits, errors = (np.cumsum(each[order], dtype=np.float64) for each in (right, wrong))
    reached = hits / persons
    # Precision at a recall is the best one at that recall or a higher one.
    best = np.maximum.accumulate((hits / (hits + errors + np.spacing(1)))[::-1])[::-1]
    at = np.searchsorted(reached, RECALLS, side="left")
    present = at < len(hits)
    precision, score = np.zeros(len(RECALLS)), np.zeros(len(RECALLS))
    precision[present], score[present] = best[at[present]], scores[order][at[present]]
    return precision, score, float(reached[-1]) if len(reached) else 0.0
