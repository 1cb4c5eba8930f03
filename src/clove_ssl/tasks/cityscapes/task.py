"""Instance segmentation of street scenes: Cityscapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.cityscapes.config import CityscapesConfig
from clove_ssl.tasks.cityscapes.reader import CityscapesDataset, read_cityscapes
from clove_ssl.tasks.cityscapes.results import write_results
from clove_ssl.tasks.cityscapes.scenes import (
    FOLDERS,
    cityscapes_scene_labels,
    read_cityscapes_scenes,
    write_cityscapes_scenes,
)
from clove_ssl.tasks.cityscapes.scores import score_cityscapes
from clove_ssl.tasks.detection.task import FAULTY, FILE, SPLITS, DetectionTask, Split
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.predictions import Record, read_detections
from clove_ssl.tasks.scoring.judging import check_images, check_records
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable

RESULTS = "cityscapes"
"""Folder beside the detections with the files that the official tool reads."""


class CityscapesTask(DetectionTask):
    """Boxes and masks of persons and vehicles."""

    config: CityscapesConfig

    def __init__(self, config: CityscapesConfig) -> None:
        super().__init__(config)

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
