"""Pictures of test images: the truth on the left, what a model predicted on the right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clove_ssl.painting.predictions import Things, paint_classes, paint_things, write_sheet
from clove_ssl.tasks.labels.polygons import draw_mask
from clove_ssl.tasks.labels.rle import mask_of_record
from clove_ssl.tasks.labels.samples import (
    PIXEL_MIDDLE,
    Annotation,
    DetectionDataset,
    Sample,
)
from clove_ssl.tasks.loading.images import read_image
from clove_ssl.tasks.predictions import Record

T = TypeVar("T")

LEAST_SCORE = 0.5
ROWS = 4
"""Images on a sheet."""

_BONES = (
    *(("left_ankle", "left_knee"), ("left_knee", "left_hip"), ("left_hip", "left_shoulder")),
    *(("left_shoulder", "left_elbow"), ("left_elbow", "left_wrist")),
    *(("right_ankle", "right_knee"), ("right_knee", "right_hip"), ("right_hip", "right_shoulder")),
    *(("right_shoulder", "right_elbow"), ("right_elbow", "right_wrist")),
    *(("left_hip", "right_hip"), ("left_shoulder", "right_shoulder")),
    *(("nose", "left_eye"), ("nose", "right_eye"), ("left_eye", "left_ear")),
    *(("right_eye", "right_ear"),),
)


def paint_detections(
    dataset: DetectionDataset,
    records: Sequence[Record],
    folder: Path,
    *,
    count: int = 12,
    least_score: float = LEAST_SCORE,
    name: str = "predictions",
) -> list[Path]:
    """Draw some images of a test set, spread over it, those with objects first."""
    by_image: dict[int | str, list[Record]] = defaultdict(list)
    for record in records:
        by_image[record["image_id"]].append(record)
    full = [sample for sample in dataset.samples if sample.annotations]
    samples = spread(full or dataset.samples, count)
    shown = {name for record in records for name in record}  # of the truth, what was predicted

    def paint(number: int) -> list[Image.Image]:
        sample = samples[number]
        found = by_image[sample.identifier]
        return _paint_pair(sample, found, dataset, shown=shown, least_score=least_score)

    return write_sheets(folder, len(samples), paint, name=name)


def paint_label_maps(
    images: Sequence[tuple[str, NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]],
    class_names: Sequence[str],
    folder: Path,
) -> list[Path]:
    """Draw images, given as name, pixels (H, W, 3), true and predicted classes (H, W)."""

    def paint(number: int) -> list[Image.Image]:
        name, pixels, truth, predicted = images[number]
        return [
            paint_classes(pixels, truth, class_names, caption=f"{name}: truth"),
            paint_classes(pixels, predicted, class_names, caption="prediction"),
        ]

    return write_sheets(folder, len(images), paint)


def spread(items: Sequence[T], count: int) -> list[T]:
    """Up to ``count`` items at equal distances."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def write_sheets(
    folder: Path,
    count: int,
    paint: Callable[[int], list[Image.Image]],
    *,
    name: str = "predictions",
) -> list[Path]:
    """Paint image 0, 1, ... in rows; only one sheet is in memory."""
    return [
        write_sheet(
            folder / f"{name}_{start // ROWS + 1}.png",
            [paint(number) for number in range(start, min(start + ROWS, count))],
        )
        for start in range(0, count, ROWS)
    ]


def _paint_pair(
    sample: Sample,
    records: Sequence[Record],
    dataset: DetectionDataset,
    *,
    shown: Collection[str],
    least_score: float,
) -> list[Image.Image]:
    pixels = read_image(sample.image, (sample.height, sample.width))
    strong = [record for record in records if record["score"] >= least_score]
    strong.sort(key=lambda record: float(record["score"]))  # the best one is painted last, on top
    caption = f"prediction: {len(strong)} of {len(records)} with a score of {least_score:g} or more"
    truth = true_things(sample, dataset, shown=shown)
    return [
        paint_things(pixels, truth, caption=f"{sample.identifier}: truth"),
        paint_things(pixels, found_things(strong, dataset), caption=caption),
    ]


def true_things(sample: Sample, dataset: DetectionDataset, *, shown: Collection[str]) -> Things:
    """The objects of an image as they are painted; ``shown`` names labels besides boxes."""
    things = sample.annotations
    masks = (draw_mask(thing.mask, height=sample.height, width=sample.width) for thing in things)
    points = [_points(thing.keypoints or ()) for thing in things]
    return Things(
        boxes=np.array([thing.box for thing in things], np.float64).reshape(-1, 4),
        labels=tuple(_true_label(thing, dataset) for thing in things),
        tones=_tones([thing.category for thing in things], dataset),
        masks=masks if "segmentation" in shown else None,
        keypoints=_stacked(points, dataset) if "keypoints" in shown else None,
        bones=_bones(dataset),
    )


def found_things(records: Sequence[Record], dataset: DetectionDataset) -> Things:
    """What was found in an image, as it is painted; the last record lies on top."""
    boxes = np.array([record["bbox"] for record in records], np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    classes = [dataset.class_of(record["category_id"]) for record in records]
    have_masks = all("segmentation" in record for record in records)
    points = [
        _points(np.reshape(record["keypoints"], (-1, 3)).tolist())
        for record in records
        if "keypoints" in record
    ]
    return Things(
        boxes=boxes,
        labels=tuple(
            f"{dataset.class_names[number]} {record['score']:.2f}"
            for number, record in zip(classes, records, strict=True)
        ),
        tones=_tones(classes, dataset),
        masks=(mask_of_record(record) for record in records) if have_masks else None,
        keypoints=_stacked(points, dataset) if points and len(points) == len(records) else None,
        bones=_bones(dataset),
    )


def _true_label(thing: Annotation, dataset: DetectionDataset) -> str:
    known = {" (crowd)": thing.crowd, " (difficult)": thing.difficult}
    marks = "".join(mark for mark, holds in known.items() if holds)
    return dataset.class_names[thing.category] + marks


def _tones(classes: Sequence[int], dataset: DetectionDataset) -> tuple[int, ...]:
    """A colour for every class, or for every object where there is one class."""
    return tuple(range(len(classes)) if len(dataset.class_names) == 1 else classes)


def _points(points: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Keypoints of a file in the middle of their pixels: (P, 3)."""
    return np.array(points, np.float64).reshape(-1, 3) + [PIXEL_MIDDLE, PIXEL_MIDDLE, 0]


def _stacked(
    points: Sequence[NDArray[np.float64]], dataset: DetectionDataset
) -> NDArray[np.float64]:
    """(N, P, 3), with zeros for objects without keypoints; classes may have different ones."""
    most = max([len(dataset.keypoint_names), *map(len, points)])
    stacked = np.zeros((len(points), most, 3))
    for row, some in zip(stacked, points, strict=True):
        row[: len(some)] = some
    return stacked


def _bones(dataset: DetectionDataset) -> tuple[tuple[int, int], ...]:
    names = dataset.keypoint_names
    return tuple(
        (names.index(start), names.index(end))
        for start, end in _BONES
        if start in names and end in names
    )
