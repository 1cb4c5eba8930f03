"""Scores of VOC by one rule, in one call."""

from __future__ import annotations

from typing import Any

from clove_ssl.tasks.detection.voc_scores import (
    Rule,
    VOCDetections,
    VOCScores,
    VOCTruth,
    match_voc,
)


def score_voc(
    truth: VOCTruth, detections: VOCDetections, *, rule: Rule = "11-point", **options: Any
) -> VOCScores:
    """Average precision of every class at every threshold."""
    sizes = {"sizes": options.pop("sizes")} if "sizes" in options else {}
    return match_voc(truth, detections, **options).scores(rule, **sizes)
