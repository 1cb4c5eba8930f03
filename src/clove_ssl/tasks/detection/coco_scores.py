"""COCO's average precision of boxes, masks and keypoints.

Ground truth is the content of a COCO annotation file, predictions are a list in COCO's
result format. Matching is done by faster-coco-eval; what it is told and what is read
off its tables is decided here. Only the field that is judged reaches it: a box beside a
mask would otherwise decide how large the mask is.

Values lie between 0 and 1. NaN means that there is nothing to find, such as a class
without objects in a size range; means leave it out. (COCO's own tools write -1.)

Dimensions: T overlap thresholds, R recall steps, K classes, A size ranges, M limits on
the detections of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import RLE, write_counts
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset
from clove_ssl.tasks.scoring.results import FIELDS, Kind, Record, check_results

Floats = NDArray[np.float64]

_NAMES = {"box": "bbox", "mask": "segm", "keypoints": "keypoints"}  # of faster-coco-eval
_PERSON_KEYPOINTS = 17


@dataclass(frozen=True)
class COCOScores:
    """Tables of precision and recall, and the scores that are read off them."""

    kind: Kind
    class_names: tuple[str, ...]
    sizes: tuple[str, ...]  # "all" and the names of size ranges
    limits: tuple[int, ...]  # detections of an image that count
    thresholds: Floats  # (T,)
    recalls: Floats  # (R,)
    precision: Floats  # (T, R, K, A, M)
    score: Floats  # (T, R, K, A, M) lowest score that reaches the recall
    recall: Floats  # (T, K, A, M)

    def summary(self) -> dict[str, float]:
        """The lines of COCO's own summary, by their usual names."""
        return self._scores(slice(None)) | self._recalls()

    def by_class(self) -> dict[str, dict[str, float]]:
        """AP, AP50, AP75 and AP by size of every class."""
        return {
            name: self._scores(slice(index, index + 1))
            for index, name in enumerate(self.class_names)
        }

    def curve(self, class_name: str, *, threshold: float = 0.5) -> tuple[Floats, Floats]:
        """Recall and precision (R,) of a class, of all sizes."""
        index = self.class_names.index(class_name)
        return self.recalls, self.precision[self._row(threshold), :, index, 0, -1]

    def _scores(self, classes: slice) -> dict[str, float]:
        table = self.precision[:, :, classes, :, -1]  # (T, R, k, A)
        scores = {
            "AP": mean_of_present(table[..., 0]),
            "AP50": mean_of_present(table[self._row(0.5), ..., 0]),
            "AP75": mean_of_present(table[self._row(0.75), ..., 0]),
        }
        sizes = enumerate(self.sizes[1:], start=1)
        return scores | {f"AP{size[0]}": mean_of_present(table[..., area]) for area, size in sizes}

    def _recalls(self) -> dict[str, float]:
        table = self.recall  # (T, K, A, M)
        sizes = {
            f"AR{size[0]}": mean_of_present(table[:, :, area, -1])
            for area, size in enumerate(self.sizes[1:], start=1)
        }
        if self.kind == "keypoints":
            everything = table[:, :, 0, -1]
            rows = {name: everything[self._row(at)] for name, at in (("AR50", 0.5), ("AR75", 0.75))}
            return (
                {"AR": mean_of_present(everything)}
                | {n: mean_of_present(r) for n, r in rows.items()}
                | sizes
            )
        limits = enumerate(self.limits)
        return {f"AR{limit}": mean_of_present(table[:, :, 0, m]) for m, limit in limits} | sizes

    def _row(self, threshold: float) -> int:
        rows = np.flatnonzero(np.isclose(self.thresholds, threshold))
        if not len(rows):
            raise ValueError(f"no threshold {threshold} in {self.thresholds.tolist()}")
        return int(rows[0])


def score_coco(
    truth: Record,
    predictions: Sequence[Record],
    *,
    kind: Kind,
    sigmas: Sequence[float] | None = None,
) -> COCOScores:
    """Score predictions; ``sigmas`` are the keypoints' tolerances, COCO's 17 by default."""
    _check_truth(truth, kind)
    count = _PERSON_KEYPOINTS if sigmas is None else len(sigmas)
    if kind == "keypoints":
        _check_keypoints(truth, count)
    check_results(
        predictions,
        images={entry["id"]: (entry["height"], entry["width"]) for entry in truth["images"]},
        categories={entry["id"] for entry in truth["categories"]},
        kind=kind,
        keypoints=count,
    )
    api, evaluator = _load_library()
    objects = api(_copy_of_truth(truth, kind))
    kept = ("image_id", "category_id", "score", FIELDS[kind])
    records = [{name: entry[name] for name in kept} for entry in predictions]
    found = objects.loadRes(records)
    job = evaluator(
        objects,
        found,
        _NAMES[kind],
        print_function=_say_nothing,
        kpt_oks_sigmas=None if sigmas is None else list(sigmas),
    )
    # For keypoints the library would leave out classes without objects.
    job.params.catIds = sorted(entry["id"] for entry in truth["categories"])
    job.evaluate()
    job.accumulate()
    return _read_tables(job, truth, kind)


def _read_tables(job: Any, truth: Record, kind: Kind) -> COCOScores:
    names = {entry["id"]: str(entry["name"]) for entry in truth["categories"]}
    return COCOScores(
        kind=kind,
        class_names=tuple(names[int(identifier)] for identifier in job.params.catIds),
        sizes=tuple(job.params.areaRngLbl),
        limits=tuple(int(limit) for limit in job.params.maxDets),
        thresholds=np.asarray(job.params.iouThrs, np.float64),
        recalls=np.asarray(job.params.recThrs, np.float64),
        precision=_without_marks(job.eval["precision"]),
        score=np.where(
            np.asarray(job.eval["precision"]) < 0, np.nan, np.asarray(job.eval["scores"])
        ),
        recall=_without_marks(job.eval["recall"]),
    )


def _copy_of_truth(truth: Record, kind: Kind) -> dict[str, Any]:
    """A copy that the library may write into."""
    images = [dict(entry) for entry in truth["images"]]
    annotations = [dict(entry) for entry in truth["annotations"]]
    categories = [dict(entry) for entry in truth["categories"]]
    for entry in annotations:
        entry.setdefault("iscrowd", 0)
    if kind == "keypoints":
        for entry in annotations:  # without this number the library ignores an object
            entry.setdefault("num_keypoints", sum(v > 0 for v in entry["keypoints"][2::3]))
    return {"images": images, "annotations": annotations, "categories": categories}


def why_no_coco_scores() -> str:
    """What is missing here for COCO's scores, and what to type; empty if nothing is."""
    if find_spec("faster_coco_eval") is not None:
        return ""
    return (
        "COCO scores need faster-coco-eval, which is not installed. "
        "Type: pip install 'clove-ssl[coco]'"
    )


def _load_library() -> tuple[Any, Any]:
    if missing := why_no_coco_scores():
        raise UserError(missing)
    library = import_module("faster_coco_eval")
    return library.COCO, library.COCOeval_faster


def _check_truth(truth: Record, kind: Kind) -> None:
    needed = {"id", "image_id", "category_id", "bbox", "area", FIELDS[kind]}
    for entry in truth["annotations"]:
        missing = needed - entry.keys()
        if missing:
            raise UserError(
                f"Annotation {entry.get('id')} has no {', '.join(sorted(missing))}, which {kind} "
                "scores need. Score with a ground truth that was annotated for this task."
            )


def _check_keypoints(truth: Record, count: int) -> None:
    for entry in truth["annotations"]:
        if len(entry["keypoints"]) != 3 * count:
            raise UserError(
                f"Annotation {entry['id']} has {len(entry['keypoints'])} keypoint numbers; "
                f"expected x, y, v of {count}. Give one sigma for every keypoint of the data."
            )


def _without_marks(table: Any) -> Floats:
    # The library writes -1 where nothing could be measured, which would pull means down.
    values = np.asarray(table, np.float64)
    return np.where(values < 0, np.nan, values)


def mean_of_present(values: Floats) -> float:
    """The mean without NaN, which marks what was not measured."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else float("nan")


def _say_nothing(*_: object) -> None:
    """The library's progress is no news to our users."""


def coco_truth(dataset: DetectionDataset) -> dict[str, Any]:
    """A dataset as the content of a COCO annotation file; images are numbered from 1.

    COCO has no difficult objects; as crowds they are neither demanded nor punished.
    """
    names = list(dataset.keypoint_names)
    things = [
        (image, thing)
        for image, sample in enumerate(dataset.samples, start=1)
        for thing in sample.annotations
    ]
    return {
        "images": [
            {"id": number, "width": sample.width, "height": sample.height}
            for number, sample in enumerate(dataset.samples, start=1)
        ],
        "annotations": [
            {"id": number, "image_id": image} | _coco_annotation(thing, dataset)
            for number, (image, thing) in enumerate(things, start=1)
        ],
        "categories": [
            {"id": identifier, "name": name} | ({"keypoints": names} if names else {})
            for identifier, name in zip(dataset.category_ids, dataset.class_names, strict=True)
        ],
    }


def _coco_annotation(thing: Annotation, dataset: DetectionDataset) -> dict[str, Any]:
    x0, y0, x1, y1 = thing.box
    entry: dict[str, Any] = {
        "category_id": dataset.category_ids[thing.category],
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": thing.area,
        "iscrowd": int(thing.crowd or thing.difficult),
    }
    if isinstance(thing.mask, RLE):
        size = [thing.mask.height, thing.mask.width]
        entry["segmentation"] = {"size": size, "counts": write_counts(thing.mask.counts)}
    elif thing.mask:
        entry["segmentation"] = [list(polygon) for polygon in thing.mask]
    if dataset.keypoint_names:
        points = thing.keypoints or ((0.0, 0.0, 0),) * len(dataset.keypoint_names)
        entry["keypoints"] = [value for point in points for value in point]
    return entry
