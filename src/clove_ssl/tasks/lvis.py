"""Instance segmentation of LVIS: many classes, most of them rare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.tasks.lvis import LVISConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.datasets.lvis import LVISDataset, open_lvis
from clove_ssl.tasks.datasets.lvis_scenes import (
    lvis_scenes_file,
    read_lvis_scenes,
    write_lvis_scenes,
)
from clove_ssl.tasks.datasets.samples import DetectionDataset
from clove_ssl.tasks.detection import FAULTY, FILE, SPLITS, DetectionTask, Split
from clove_ssl.tasks.loading.order import aspect_kinds
from clove_ssl.tasks.loading.repeats import RepeatedOrder, sample_factors
from clove_ssl.tasks.predictions import Record, read_detections
from clove_ssl.tasks.showing import draw_detections

RARE_SCORE = 0.05
"""Least score of a rare class in pictures; detectors are never sure of those."""


CLASSES_OF_HALF = 1230
"""Classes of version 0.5; version 1 has 1,203."""


class LVISTask(DetectionTask):
    """Boxes and masks of a thousand classes, of which rare ones are seen more often."""

    config: LVISConfig

    def __init__(self, config: LVISConfig) -> None:
        super().__init__(config)

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes, unless they are there."""
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            if not lvis_scenes_file(folder, split).is_file():
                write_lvis_scenes(folder, split, count=count, size=config.scenes_size)

    def training_order(self, dataset: DetectionDataset, *, seed: int, group: int) -> RepeatedOrder:
        """Images with rare classes more than once in an epoch."""
        factors = sample_factors(dataset.samples, threshold=self.config.repeat_threshold)
        return RepeatedOrder(aspect_kinds(dataset.samples), factors, seed, group=group)

    def draw(
        self, folder: Path, test: DetectionDataset, pictures: Path, *, count: int
    ) -> list[Path]:
        """Draw detections of all classes, and of rare ones alone where the test has any."""
        assert isinstance(test, LVISDataset)
        records = read_detections(folder / FILE).records
        rare, of_rare = _rare_part(test, records)
        share = count // 2 if rare.samples else 0
        drawn = draw_detections(test, records, pictures, count=count - share)
        if share:
            drawn += draw_detections(
                rare, of_rare, pictures, count=share, least_score=RARE_SCORE, name="rare"
            )
        return drawn

    def _read_scenes(self, folder: Path, split: Split) -> LVISDataset:
        return read_lvis_scenes(folder, split)

    def _read(self, config: LabelledDataConfig, split: Split) -> LVISDataset:
        if config.lists(split):
            raise UserError(
                f"{self.config.name} reads LVIS's format, which has no lists. Leave out "
                f"--data.{split}-lists."
            )
        annotations, images = config.files(split)
        return open_lvis(
            config.root,
            split,
            annotations=annotations,
            images=images,
            versions=self.config.versions,
            faulty=FAULTY.get(config.faulty, "refuse"),
        )

    def _task_data(
        self, train: DetectionDataset, test: DetectionDataset, notes: Sequence[str]
    ) -> TaskData:
        data = super()._task_data(train, test, notes)
        factors = sample_factors(data.train.samples, threshold=self.config.repeat_threshold)
        line = "No class is so rare that its images come more than once in an epoch"
        if factors.max() > 1:
            line = (
                f"Images with rare classes come up to {factors.max():.1f} times in an epoch, which "
                f"has about {factors.sum():,.0f} images"
            )
        notes = (*data.notes, line)
        if len(train.class_names) == CLASSES_OF_HALF and type(self.config) is LVISConfig:
            notes += (
                f"These are the {CLASSES_OF_HALF:,} classes of LVIS v0.5, whose published schedule "
                "is half as long as that of v1; lvis-v0.5-fpn has it",
            )
        return replace(data, notes=notes)


def _rare_part(test: LVISDataset, records: Sequence[Record]) -> tuple[LVISDataset, list[Record]]:
    """The images with rare classes, and what is true and was found of these."""
    rare = {number for number, letter in enumerate(test.frequencies) if letter == "r"}
    ids = {test.category_ids[number] for number in rare}
    samples = tuple(
        replace(sample, annotations=things)
        for sample in test.samples
        if (things := tuple(thing for thing in sample.annotations if thing.category in rare))
    )
    return replace(test, samples=samples), [r for r in records if r["category_id"] in ids]
