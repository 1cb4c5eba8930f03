"""Predictions of a dataset to scores, by the rules of VOC, COCO and semantic segmentation.

Ground truth is a dataset as its reader gave it, predictions are records in COCO's result format;
image ids and category ids are those of the dataset. Nothing here needs a model or a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco_scores import (
    COCOScores,
    Floats,
    coco_truth,
    mean_of_present,
    score_coco,
)
from clove_ssl.tasks.detection.voc_scores import Rule, VOCDetections, VOCScores, VOCTruth, match_voc
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.lvis.reader import LVISDataset
from clove_ssl.tasks.lvis.scores import score_lvis
from clove_ssl.tasks.predictions import Predictions
from clove_ssl.tasks.scoring.results import ImageSizes, Record, check_results
from clove_ssl.tasks.scoring.results import Kind as CocoKind
from clove_ssl.tasks.scoring.scores import Curve, Scores, ScoreTable
from clove_ssl.tasks.semantic.scores import accuracy, class_iou, confusion, mean_iou

Kind = Literal["voc"] | CocoKind

SIZES = {"s": (0.0, 32.0**2), "m": (32.0**2, 96.0**2), "l": (96.0**2, float("inf"))}
"""Areas in pixels of small, medium and large objects, as COCO cuts them."""


def score_predictions(
    kinds: Sequence[Kind],
    dataset: DetectionDataset,
    predictions: Predictions,
    *,
    sigmas: Sequence[float] | None = None,
) -> Scores:
    """Score detections by every asked rule.

    Args:
        kinds: "voc" judges boxes by the development kit, the others by COCO's rules.
        dataset: The test set that was predicted.
        predictions: What was found in it.
        sigmas: For keypoints: tolerance of each, COCO's 17 by default.
    """
    check_images(dataset, predictions)
    tables: list[ScoreTable] = []
    for kind in kinds:
        if kind == "voc":
            tables += _voc_tables(dataset, predictions.records)
        else:
            tables.append(_coco_table(kind, dataset, predictions.records, sigmas))
    return Scores(tuple(tables), images=len(dataset.samples))


def score_label_maps(pairs: Iterable[tuple[Tensor, Tensor]], class_names: Sequence[str]) -> Scores:
    """Score maps of classes: true and predicted, both (H, W); 255 in the truth counts nowhere."""
    classes, images = len(class_names), 0
    counts = torch.zeros(classes, classes, dtype=torch.float64)
    for truth, predicted in pairs:
        counts += confusion(truth, predicted, classes)
        images += 1
    iou = class_iou(counts)
    truths = counts.sum(1) / counts.sum().clamp_min(1)  # (K,)
    by_class = {
        name: {"IoU": iou.get(number, float("nan")), "pixels": truths[number].item()}
        for number, name in enumerate(class_names)
    }
    summary = {"mIoU": mean_iou(counts), "accuracy": accuracy(counts)}
    table = ScoreTable("pixels", "intersection over union of all pixels", summary, by_class)
    return Scores((table,), images=images)


def _coco_table(
    kind: CocoKind,
    dataset: DetectionDataset,
    records: Sequence[Record],
    sigmas: Sequence[float] | None,
) -> ScoreTable:
    check_records(dataset, records, kind=kind)
    if isinstance(dataset, LVISDataset) and kind != "keypoints":
        return _lvis_table(kind, dataset, records)
    images = {sample.identifier: number for number, sample in enumerate(dataset.samples, start=1)}
    numbered = [{**record, "image_id": images[record["image_id"]]} for record in records]
    scored = score_coco(coco_truth(dataset), numbered, kind=kind, sigmas=sigmas)
    by_class = _scores_by_class(scored, dataset)
    curves = {name: _curve(*scored.curve(name)) for name in scored.class_names}
    present = {name: curve for name, curve in curves.items() if curve.recall}
    return ScoreTable(kind, "COCO average precision", scored.summary(), by_class, present)


def _lvis_table(
    kind: Literal["box", "mask"], dataset: LVISDataset, records: Sequence[Record]
) -> ScoreTable:
    """Classes of which the test has objects; a curve for the rare, common and frequent ones."""
    scored = score_lvis(dataset, records, kind=kind)
    by_class = {
        name: values
        for name, values in _scores_by_class(scored, dataset).items()
        if values["objects"]
    }
    curves = {name: _curve(*curve) for name, curve in scored.curves_by_frequency().items()}
    return ScoreTable(kind, "LVIS average precision", scored.summary(), by_class, curves)


def _scores_by_class(scored: COCOScores, dataset: DetectionDataset) -> dict[str, dict[str, float]]:
    counts = _objects_by_class(dataset)
    return {
        name: values | {"objects": float(counts[number])}
        for number, (name, values) in enumerate(scored.by_class().items())
    }


def _voc_tables(dataset: DetectionDataset, records: Sequence[Record]) -> list[ScoreTable]:
    """Both rules of the kit; the one of 2007 comes first, because protocols report it."""
    # Published scores were made with Detectron2, whose evaluator rounds before it scores.
    matches = match_voc(
        VOCTruth.of(dataset.samples),
        _voc_detections(dataset, records),
        classes=len(dataset.class_names),
        detectron2_rounding=True,
    )
    rounded = ", scores and boxes rounded as by Detectron2"
    rules: tuple[tuple[str, Rule, str], ...] = (
        ("voc", "11-point", f"VOC 2007, 11 points{rounded}"),
        ("voc_area", "area", f"VOC, area under the curve{rounded}"),
    )
    tables = []
    for name, rule, text in rules:
        by_size = [matches.scores(rule, sizes=sizes) for sizes in SIZES.values()]
        tables.append(_voc_table(name, text, dataset, matches.scores(rule), by_size))
    return tables


def _voc_table(
    name: str, rule: str, dataset: DetectionDataset, scored: VOCScores, by_size: list[VOCScores]
) -> ScoreTable:
    def columns(table: Floats) -> dict[str, float]:
        part = VOCScores(table, scored.objects, ())
        return {"AP": part.ap, "AP50": part.ap50, "AP75": part.ap75}

    # Sizes without objects of a class say nothing about it.
    sized = {
        f"AP{size}": np.where(part.objects > 0, part.table.mean(1), np.nan)
        for size, part in zip(SIZES, by_size, strict=True)
    }
    by_class = {
        class_name: columns(scored.table[number : number + 1])
        | {name: float(values[number]) for name, values in sized.items()}
        | {"objects": float(scored.objects[number])}
        for number, class_name in enumerate(dataset.class_names)
    }
    summary = columns(scored.table) | {
        name: mean_of_present(values) for name, values in sized.items()
    }
    curves = {
        class_name: _thinned(*curve)
        for class_name, curve, objects in zip(
            dataset.class_names, scored.curves, scored.objects, strict=True
        )
        if objects
    }
    return ScoreTable(name, rule, summary, by_class, curves)


def _voc_detections(dataset: DetectionDataset, records: Sequence[Record]) -> VOCDetections:
    images = {sample.identifier: number for number, sample in enumerate(dataset.samples)}
    classes = {identifier: number for number, identifier in enumerate(dataset.category_ids)}
    check_results(records, images=_sizes(dataset), categories=classes, kind="box")
    boxes = np.array([record["bbox"] for record in records], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return VOCDetections(
        image=np.array([images[record["image_id"]] for record in records], np.int64),
        category=np.array([classes[record["category_id"]] for record in records], np.int64),
        box=boxes,
        score=np.array([record["score"] for record in records], np.float64),
    )


def _sizes(dataset: DetectionDataset) -> ImageSizes:
    return {sample.identifier: (sample.height, sample.width) for sample in dataset.samples}


def check_records(dataset: DetectionDataset, records: Sequence[Record], *, kind: CocoKind) -> None:
    """Refuse records of other images or classes, and those without what is judged."""
    check_results(
        records,
        images=_sizes(dataset),
        categories=frozenset(dataset.category_ids),
        kind=kind,
        keypoints=len(dataset.keypoint_names),
    )


def check_images(dataset: DetectionDataset, predictions: Predictions) -> None:
    """Refuse predictions of another number of images."""
    predicted = predictions.header.get("images")
    if predicted is not None and predicted != len(dataset.samples):
        raise UserError(
            f"The predictions are of {predicted} images, but the test set has "
            f"{len(dataset.samples)}. Score them with the annotations they were made for."
        )


def _objects_by_class(dataset: DetectionDataset) -> list[int]:
    counts = [0] * len(dataset.class_names)
    for sample in dataset.samples:
        for thing in sample.annotations:
            counts[thing.category] += not (thing.crowd or thing.difficult)
    return counts


def _curve(recall: Floats, precision: Floats) -> Curve:
    """A curve without the places that nothing was measured for."""
    present = ~np.isnan(precision)
    return Curve(tuple(recall[present].tolist()), tuple(precision[present].tolist()))


def _thinned(recall: Floats, precision: Floats) -> Curve:
    """The last place of every recall in steps of 1 %, where a curve of VOC has thousands."""
    if not len(recall):
        return Curve((), ())
    last = np.flatnonzero(np.diff(np.floor(recall * 100), append=np.inf))
    return _curve(recall[last], precision[last])
