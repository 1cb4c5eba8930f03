"""Instance segmentation of street scenes: Cityscapes.

Predictions are written as its evaluation server takes them: ``<image>_pred.txt`` with mask, label
id and score of a detection in a line, and ``masks/<image>_000_car.png``, white where it is.
``csEvalInstanceLevelSemanticLabeling`` reads them when CITYSCAPES_RESULTS names the folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.data.labels.mask_files import mask_file_numbers
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.cityscapes.config import CityscapesConfig
from clove_ssl.tasks.cityscapes.maps import THINGS
from clove_ssl.tasks.cityscapes.reader import CityscapesDataset, read_cityscapes
from clove_ssl.tasks.cityscapes.scenes import (
    FOLDERS,
    cityscapes_scene_labels,
    read_cityscapes_scenes,
    write_cityscapes_scenes,
)
from clove_ssl.tasks.cityscapes.scores import score_cityscapes
from clove_ssl.tasks.detection.task import FAULTY, FILE, SPLITS, DetectionTask
from clove_ssl.tasks.labels.rle import (
    encode_mask,
    mask_of_record,
    write_counts,
)
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample, Split
from clove_ssl.tasks.predictions import Record, read_detections
from clove_ssl.tasks.scoring.judging import check_images, check_records
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable

RESULTS = "cityscapes"
"""Folder beside the detections with the files that the official tool reads."""


class CityscapesTask(DetectionTask):
    """Boxes and masks of persons and vehicles."""

    config: CityscapesConfig

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes, unless they are there."""
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            last = cityscapes_scene_labels(folder, split, count - 1, labels="instances")
            if not last.is_file():
                write_cityscapes_scenes(folder, split, count=count, size=config.scenes_size)

    def write_predictions(
        self,
        folder: Path,
        predictions: Sequence[Record],
        data: TaskData,
        *,
        header: Mapping[str, Any],
    ) -> None:
        """Write all detections in COCO's result format, and in that of Cityscapes."""
        write_results(folder / RESULTS, predictions, samples=data.test.samples)
        super().write_predictions(folder, predictions, data, header=header)

    def why_not_scored(self) -> str:
        """Nothing is missing: these rules are our own code."""
        return ""

    def score(self, folder: Path, test: DetectionDataset) -> Scores:
        """Instance-level average precision."""
        assert isinstance(test, CityscapesDataset)
        predictions = read_detections(folder / FILE)
        check_images(test, predictions)
        check_records(test, predictions.records, kind="mask")
        scored = score_cityscapes(test, predictions.records)
        curves = dict(zip(test.class_names, scored.curves, strict=True))
        table = ScoreTable(
            "mask",
            "Cityscapes instance-level average precision",
            scored.summary(),
            scored.by_class(),
            {name: curve for name, curve in curves.items() if curve.recall},
        )
        return Scores((table,), images=len(test.samples))

    def _read_scenes(self, folder: Path, split: Split) -> CityscapesDataset:
        return read_cityscapes_scenes(folder, split, labels=self.config.labels)

    def _read(self, config: LabelledDataConfig, split: Split) -> CityscapesDataset:
        if config.root is None or any(config.files(split)) or config.lists(split):
            raise UserError(
                f"{self.config.name} reads the folders of Cityscapes, neither annotation files nor "
                "lists. Give --data FOLDER alone, with leftImg8bit and gtFine in it."
            )
        faulty = FAULTY.get(config.faulty, "refuse")
        return read_cityscapes(
            config.root, FOLDERS[split], labels=self.config.labels, faulty=faulty
        )

    def _task_data(
        self, train: DetectionDataset, test: DetectionDataset, notes: Sequence[str]
    ) -> TaskData:
        if self.labels != "masks":
            raise UserError(
                f"{self.config.name} is scored by masks, but its detector would learn "
                f"{self.labels}. Leave out --task.detector.no-masks and --task.detector.keypoints."
            )
        return super()._task_data(train, test, notes)


_MASKS = "masks"
_LIST_END = "_pred.txt"
_AGAIN = "Write the results again in the format of Cityscapes."


def write_results(folder: Path, records: Iterable[Record], *, samples: Sequence[Sample]) -> None:
    """Write a list for every image, also where nothing was found, and all masks."""
    by_image: dict[int | str, list[Record]] = defaultdict(list)
    for record in records:
        by_image[record["image_id"]].append(record)
    names = {label: name for name, label in THINGS.items()}
    try:
        (folder / _MASKS).mkdir(parents=True, exist_ok=True)
        for sample in samples:
            lines = []
            for number, record in enumerate(by_image[sample.identifier]):
                label = record["category_id"]
                mask = f"{_MASKS}/{sample.identifier}_{number:03d}_{names[label]}.png"
                Image.fromarray(mask_of_record(record)).save(folder / mask)
                lines.append(f"{mask} {label} {record['score']!r}\n")
            write_text(folder / f"{sample.identifier}{_LIST_END}", "".join(lines))
    except OSError as error:
        raise unwritable("Predictions", folder, error) from None


def read_results(folder: Path, *, samples: Sequence[Sample]) -> list[Record]:
    """Read results of any program in that format; things alone, as the official tool does."""
    return [record for sample in samples for record in _read_list(folder, sample)]


def _read_list(folder: Path, sample: Sample) -> Iterable[Record]:
    path = folder / f"{sample.identifier}{_LIST_END}"
    try:
        lines = path.read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Expected a list for every test image. "
            f"{_AGAIN}"
        ) from None
    for line in lines:
        try:
            mask, label, score = line.split(" ")
            category, confidence = int(float(label)), float(score)
        except (ValueError, OverflowError):  # the latter of an infinite label
            raise UserError(
                f"{path} has the line {line!r}; expected a mask, a label id and a score. {_AGAIN}"
            ) from None
        if category in THINGS.values():
            yield _record(path.parent / mask, sample, category, confidence)


def _record(path: Path, sample: Sample, category: int, score: float) -> Record:
    try:
        mask = mask_file_numbers(path, convert="L")[1] != 0
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}. {_AGAIN}") from None
    if mask.shape != (sample.height, sample.width):
        raise UserError(
            f"{path} has {mask.shape[1]} x {mask.shape[0]} pixels, but its image {sample.width} x "
            f"{sample.height}. {_AGAIN}"
        )
    rle = encode_mask(mask)
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = [0.0] * 4
    if len(rows):
        corner = [float(columns[0]), float(rows[0])]
        box = [*corner, float(columns[-1] + 1) - corner[0], float(rows[-1] + 1) - corner[1]]
    return {
        "image_id": sample.identifier,
        "category_id": category,
        "bbox": box,
        "score": score,
        "segmentation": {"size": list(mask.shape), "counts": write_counts(rle.counts)},
    }
