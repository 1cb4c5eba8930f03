"""VOC average precision against recordings of Detectron2's evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from builders.tasks.voc_scoring import score_voc

from clove_ssl.tasks.detection.voc_scores import THRESHOLDS, VOCDetections, VOCTruth

pytestmark = pytest.mark.golden

Golden = Callable[[str], Mapping[str, np.ndarray]]


def recorded_case(
    arrays: Mapping[str, np.ndarray], case: str
) -> tuple[VOCTruth, VOCDetections, int]:
    objects = arrays[f"{case}_gt_img_cls_x1y1x2y2_difficult"]
    found = arrays[f"{case}_det_img_cls_score_x1y1x2y2"]
    truth = VOCTruth(
        image=objects[:, 0],
        category=objects[:, 1],
        box=objects[:, 2:6] - np.array([1.0, 1.0, 0.0, 0.0]),
        difficult=objects[:, 6].astype(bool),
    )
    detections = VOCDetections(
        image=found[:, 0].astype(np.int64),
        category=found[:, 1].astype(np.int64),
        box=found[:, 3:],
        score=found[:, 2],
    )
    return truth, detections, len(arrays["class_names"])


@pytest.mark.parametrize("case", ["noties", "ties"])
@pytest.mark.parametrize(("rule", "name"), [("11-point", "11point"), ("area", "area")])
def test_every_class_and_threshold_scores_as_recorded(
    golden: Golden, case: str, rule: str, name: str
) -> None:
    arrays = golden("detectron2/11_voc_eval.npz")
    truth, detections, classes = recorded_case(arrays, case)
    scores = score_voc(truth, detections, classes=classes, rule=rule, detectron2_rounding=True)
    np.testing.assert_allclose(arrays["iou_thresholds"], THRESHOLDS, rtol=0, atol=1e-12)
    expected = arrays[f"{case}_{name}_ap_stable_sort"]
    np.testing.assert_allclose(scores.table, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("rule", "name"), [("11-point", "11point"), ("area", "area")])
def test_the_summary_without_ties_is_the_recorded_one(golden: Golden, rule: str, name: str) -> None:
    arrays = golden("detectron2/11_voc_eval.npz")
    truth, detections, classes = recorded_case(arrays, "noties")
    scores = score_voc(truth, detections, classes=classes, rule=rule, detectron2_rounding=True)
    summary = [100 * value for value in (scores.ap, scores.ap50, scores.ap75)]
    expected = arrays[f"noties_{name}_summary_AP_AP50_AP75"]
    np.testing.assert_allclose(summary, expected, rtol=0, atol=1e-9)
