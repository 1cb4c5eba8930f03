"""score_coco against COCO's own tool on random datasets, and what it refuses."""

from __future__ import annotations

import contextlib
import copy
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("faster_coco_eval")
pytest.importorskip("pycocotools")

from builders.labels.coco_cases import random_case
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco_scores import score_coco

NAMES = {"box": "bbox", "mask": "segm", "keypoints": "keypoints"}
Case = tuple[dict[str, Any], list[dict[str, Any]]]


def original(truth: dict[str, Any], predictions: list[dict[str, Any]], kind: str) -> COCOeval:
    with contextlib.redirect_stdout(io.StringIO()):
        objects = COCO()
        objects.dataset = copy.deepcopy(truth)
        objects.createIndex()
        job = COCOeval(objects, objects.loadRes(copy.deepcopy(predictions)), NAMES[kind])
        job.evaluate()
        job.accumulate()
        job.summarize()
    return job


def unmarked(values: np.ndarray) -> np.ndarray:
    return np.where(values < 0, np.nan, values)


@pytest.mark.parametrize("kind", ["box", "mask", "keypoints"])
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_tables_and_summary_equal_those_of_the_original_tool(kind: str, seed: int) -> None:
    truth, predictions = random_case(seed, kind)
    expected = original(truth, predictions, kind)
    scores = score_coco(truth, predictions, kind=kind)
    for mine, theirs in ((scores.precision, "precision"), (scores.recall, "recall")):
        np.testing.assert_allclose(mine, unmarked(expected.eval[theirs]), rtol=0, atol=1e-9)
    summary = list(scores.summary().values())
    np.testing.assert_allclose(summary, unmarked(expected.stats), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["box", "mask", "keypoints"])
def test_class_scores_equal_those_of_the_class_alone(kind: str) -> None:
    truth, predictions = random_case(5, kind)
    table = score_coco(truth, predictions, kind=kind).by_class()
    for category in truth["categories"]:
        alone = truth | {"categories": [category]}
        mine = [entry for entry in predictions if entry["category_id"] == category["id"]]
        summary = score_coco(alone, mine, kind=kind).summary()
        for name, value in table[category["name"]].items():
            assert value == pytest.approx(summary[name], abs=1e-12, nan_ok=True)


def test_names_of_scores_are_the_usual_ones() -> None:
    boxes = score_coco(*random_case(0, "box"), kind="box").summary()
    assert " ".join(boxes) == "AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl"
    points = score_coco(*random_case(0, "keypoints"), kind="keypoints")
    assert " ".join(points.summary()) == "AP AP50 AP75 APm APl AR AR50 AR75 ARm ARl"
    assert points.limits == (20,)


def simple_case() -> Case:
    truth = {
        "images": [{"id": 1, "width": 50, "height": 50}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 20, 20], "area": 400},
            {"id": 2, "image_id": 1, "category_id": 3, "bbox": [25, 25, 20, 20], "area": 400},
        ],
        "categories": [{"id": 3, "name": "cup"}, {"id": 9, "name": "absent"}],
    }
    found = {"image_id": 1, "category_id": 3, "bbox": [1, 1, 20, 20], "score": 0.75}
    return truth, [found]


def test_a_curve_ends_where_nothing_more_was_found() -> None:
    scores = score_coco(*simple_case(), kind="box")
    recall, precision = scores.curve("cup", threshold=0.75)
    np.testing.assert_array_equal(precision[recall <= 0.5], 1.0)
    np.testing.assert_array_equal(precision[recall > 0.5], 0.0)
    assert scores.score[0, 0, 0, 0, -1] == pytest.approx(0.75)
    assert np.isnan(scores.curve("absent")[1]).all()
    with pytest.raises(ValueError, match="no threshold"):
        scores.curve("cup", threshold=0.77)


def test_no_predictions_score_zero_and_absent_classes_count_nowhere() -> None:
    truth, _ = simple_case()
    scores = score_coco(truth, [], kind="box")
    assert scores.summary()["AP"] == 0
    assert scores.summary()["AR100"] == 0
    assert np.isnan(scores.by_class()["absent"]["AP"])


def test_a_box_beside_a_mask_does_not_decide_its_size() -> None:
    truth, predictions = random_case(3, "mask")
    boxed = [entry | {"bbox": [0, 0, 1, 1]} for entry in predictions]
    plain = score_coco(truth, predictions, kind="mask")
    np.testing.assert_array_equal(score_coco(truth, boxed, kind="mask").precision, plain.precision)


def test_the_inputs_stay_as_they_are() -> None:
    truth, predictions = random_case(4, "mask")
    before = copy.deepcopy((truth, predictions))
    score_coco(truth, predictions, kind="mask")
    assert (truth, predictions) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 2}, "image_id 2"),
        ({"category_id": 4}, "category_id 4"),
        ({"score": float("nan")}, "score nan"),
    ],
)
def test_predictions_that_belong_elsewhere_are_refused(
    change: dict[str, Any], message: str
) -> None:
    truth, (found,) = simple_case()
    with pytest.raises(UserError, match=message):
        score_coco(truth, [found | change], kind="box")


def test_predictions_without_the_judged_field_are_refused() -> None:
    truth, predictions = random_case(3, "mask")
    del predictions[1]["segmentation"]
    with pytest.raises(UserError, match="Prediction 1 has no segmentation"):
        score_coco(truth, predictions, kind="mask")


def test_ground_truth_of_another_task_is_refused() -> None:
    truth, (found,) = simple_case()
    rle = {"size": [50, 50], "counts": "0"}
    with pytest.raises(UserError, match="Annotation 1 has no segmentation"):
        score_coco(truth, [found | {"segmentation": rle}], kind="mask")


def test_labelled_keypoints_are_counted_where_the_file_does_not() -> None:
    truth, predictions = random_case(0, "keypoints")
    uncounted = copy.deepcopy(truth)
    for entry in uncounted["annotations"]:
        del entry["num_keypoints"]
    np.testing.assert_array_equal(
        score_coco(uncounted, predictions, kind="keypoints").precision,
        score_coco(truth, predictions, kind="keypoints").precision,
    )


def test_keypoints_need_a_sigma_each() -> None:
    truth, predictions = random_case(2, "keypoints")
    with pytest.raises(UserError, match="expected x, y, v of 3"):
        score_coco(truth, predictions, kind="keypoints", sigmas=[0.1] * 3)


def test_loose_sigmas_forgive_more_than_tight_ones() -> None:
    truth, predictions = random_case(0, "keypoints")
    tight, loose = (
        score_coco(truth, predictions, kind="keypoints", sigmas=[sigma] * 17).summary()["AP"]
        for sigma in (0.01, 0.5)
    )
    assert tight < loose


def test_a_missing_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faster_coco_eval", None)
    with pytest.raises(UserError, match=r"pip install 'clove-ssl\[coco\]'"):
        score_coco(*simple_case(), kind="box")
