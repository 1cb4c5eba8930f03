"""score_voc against a reference that handles one detection at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders.tasks.voc_scoring import score_voc
from hypothesis import example, given
from hypothesis import strategies as st
from references.tasks import voc_ap

from clove_ssl.tasks.detection.voc_scores import THRESHOLDS, VOCDetections, VOCTruth

CLASSES = 3
OBJECT = voc_ap.Object(0, 0, (2.0, 3.0, 9.0, 11.0), False)

# Few places, sides and scores, so that ties, duplicates and exact overlaps are common.
places = st.integers(0, 6).map(lambda value: value * 2.5)
sides = st.sampled_from([1.0, 4.0, 5.0, 8.3, 10.0])
images = st.integers(0, 2)
categories = st.integers(0, CLASSES - 1)


@st.composite
def boxes(draw: st.DrawFn) -> voc_ap.Box:
    x, y = draw(places), draw(places)
    return x, y, x + draw(sides), y + draw(sides)


objects = st.builds(voc_ap.Object, images, categories, boxes(), st.booleans())
scores = st.sampled_from([0.1, 0.1004, 0.104, 0.25, 0.5, 0.5006, 0.9])
detections = st.builds(voc_ap.Detection, images, categories, boxes(), scores)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[voc_ap.Object], list[voc_ap.Detection]]:
    """Objects and detections, some of which repeat objects and each other."""
    things = draw(st.lists(objects, max_size=8))
    found = draw(st.lists(detections, max_size=8))
    if things:
        for thing in draw(st.lists(st.sampled_from(things), max_size=6)):
            found.append(voc_ap.Detection(thing.image, thing.category, thing.box, draw(scores)))
    return things, draw(st.permutations(found))


def as_arrays(
    things: list[voc_ap.Object], found: list[voc_ap.Detection]
) -> tuple[VOCTruth, VOCDetections]:
    truth = VOCTruth(
        image=np.array([o.image for o in things], np.int64),
        category=np.array([o.category for o in things], np.int64),
        box=np.array([o.box for o in things], np.float64).reshape(-1, 4),
        difficult=np.array([o.difficult for o in things], bool),
    )
    detected = VOCDetections(
        image=np.array([d.image for d in found], np.int64),
        category=np.array([d.category for d in found], np.int64),
        box=np.array([d.box for d in found], np.float64).reshape(-1, 4),
        score=np.array([d.score for d in found], np.float64),
    )
    return truth, detected


@pytest.mark.parametrize("rule", ["11-point", "area"])
@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("sizes", [(0.0, math.inf), (20.0, 60.0)])
@given(case=cases())
@example(case=([], []))
@example(case=([OBJECT], []))
@example(case=([OBJECT._replace(difficult=True)], [voc_ap.Detection(0, 0, OBJECT.box, 0.5)]))
@example(case=([OBJECT], [voc_ap.Detection(0, 0, OBJECT.box, 0.5)] * 3))
def test_every_class_and_threshold_equals_the_reference(
    rule: str,
    rounding: bool,
    sizes: tuple[float, float],
    case: tuple[list[voc_ap.Object], list[voc_ap.Detection]],
) -> None:
    things, found = case
    scored = score_voc(
        *as_arrays(things, found),
        classes=CLASSES,
        rule=rule,
        detectron2_rounding=rounding,
        sizes=sizes,
    )
    for category in range(CLASSES):
        for column, threshold in enumerate(THRESHOLDS):
            expected = voc_ap.average_precision(
                things,
                found,
                category=category,
                threshold=threshold,
                rule=rule,
                as_printed=rounding,
                sizes=sizes,
            )
            assert scored.table[category, column] == pytest.approx(
                expected, rel=0, abs=1e-12, nan_ok=True
            )


def test_perfect_detections_score_one_and_none_score_zero() -> None:
    things = [
        OBJECT,
        OBJECT._replace(image=1),
        OBJECT._replace(category=1),
        OBJECT._replace(category=2),
    ]
    found = [voc_ap.Detection(o.image, o.category, o.box, 0.8) for o in things]
    for rule in ("11-point", "area"):
        best = score_voc(*as_arrays(things, found), classes=CLASSES, rule=rule)
        assert (best.ap, best.ap50, best.ap75) == pytest.approx((1.0, 1.0, 1.0))
        assert score_voc(*as_arrays(things, []), classes=CLASSES, rule=rule).ap == 0


SQUARE = voc_ap.Object(0, 0, (0.0, 0.0, 10.0, 10.0), False)


def test_an_overlap_of_exactly_the_threshold_is_none() -> None:
    half = voc_ap.Detection(0, 0, (0.0, 0.0, 10.0, 5.0), 0.9)
    assert score_voc(*as_arrays([SQUARE], [half]), classes=1).ap50 == 0
    more = half._replace(box=(0.0, 0.0, 10.0, 5.01))
    assert score_voc(*as_arrays([SQUARE], [more]), classes=1).ap50 == pytest.approx(1.0)


@pytest.mark.parametrize(("score", "rounded", "exact"), [(0.5004, 0.5, 1.0), (0.504, 1.0, 1.0)])
def test_scores_that_print_alike_keep_their_order(
    score: float, rounded: float, exact: float
) -> None:
    wrong = voc_ap.Detection(1, 0, SQUARE.box, 0.5)
    right = voc_ap.Detection(0, 0, SQUARE.box, score)
    arrays = as_arrays([SQUARE], [wrong, right])
    assert score_voc(*arrays, classes=1).ap50 == pytest.approx(exact)
    printed = score_voc(*arrays, classes=1, detectron2_rounding=True)
    assert printed.ap50 == pytest.approx(rounded)


def test_boxes_are_rounded_to_a_tenth_of_a_pixel() -> None:
    arrays = as_arrays([SQUARE], [voc_ap.Detection(0, 0, (0.0, 0.0, 10.0, 5.04), 0.9)])
    assert score_voc(*arrays, classes=1).ap50 == pytest.approx(1.0)
    assert score_voc(*arrays, classes=1, detectron2_rounding=True).ap50 == 0


def test_classes_out_of_range_and_ragged_columns_are_refused() -> None:
    truth, found = as_arrays([OBJECT], [])
    with pytest.raises(ValueError, match="classes 0 to 0 of 0"):
        score_voc(truth, found, classes=0)
    with pytest.raises(ValueError, match="expected 1 boxes"):
        VOCTruth(truth.image, truth.category, truth.box, np.zeros(2, bool))
    with pytest.raises(ValueError, match="finite"):
        VOCDetections(truth.image, truth.category, truth.box, np.array([np.nan]))
