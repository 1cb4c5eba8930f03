"""Instance segmentation of LVIS: many classes, most of them rare.

A class in a share f of all images has the factor max(1, sqrt(t / f)), and an image that of its
rarest class. The factor is how often an image comes in an epoch, on average: an image with 2.3
comes twice, and in three of ten epochs a third time. That choice is a pure function of the seed
and the epoch, so neither processes nor a restart change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.data.names import IntArray
from clove_ssl.data.order import copy_uniforms, shuffled
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.detection.task import FAULTY, FILE, SPLITS, DetectionTask
from clove_ssl.tasks.labels.rle import places_in_rows
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample, Split
from clove_ssl.tasks.loading.order import GroupedOrder, aspect_kinds
from clove_ssl.tasks.lvis.config import LVISConfig
from clove_ssl.tasks.lvis.reader import LVISDataset, open_lvis
from clove_ssl.tasks.lvis.scenes import lvis_scenes_file, read_lvis_scenes, write_lvis_scenes
from clove_ssl.tasks.pictures import paint_detections
from clove_ssl.tasks.predictions import Record, read_detections

RARE_SCORE = 0.05
"""Least score of a rare class in pictures; detectors are never sure of those."""

CLASSES_OF_HALF = 1230
"""Classes of version 0.5; version 1 has 1,203."""


class LVISTask(DetectionTask):
    """Boxes and masks of a thousand classes, of which rare ones are seen more often."""

    config: LVISConfig

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes, unless they are there."""
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            if not lvis_scenes_file(folder, split).is_file():
                write_lvis_scenes(folder, split, count=count, size=config.scenes_size)

    def training_order(self, dataset: DetectionDataset, *, seed: int, group: int) -> RepeatedOrder:
        """Images with rare classes more than once in an epoch."""
        factors = sample_factors(dataset.samples, threshold=self.config.repeat_threshold)
        return RepeatedOrder(aspect_kinds(dataset.samples), factors, seed, group=group)

    def paint(
        self, folder: Path, test: DetectionDataset, pictures: Path, *, count: int
    ) -> list[Path]:
        """Draw detections of all classes, and of rare ones alone where the test has any."""
        assert isinstance(test, LVISDataset)
        records = read_detections(folder / FILE).records
        rare, of_rare = _rare_part(test, records)
        share = count // 2 if rare.samples else 0
        drawn = paint_detections(test, records, pictures, count=count - share)
        if share:
            drawn += paint_detections(
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


Floats = npt.NDArray[np.float64]


def repeat_factors(classes: Sequence[Iterable[int]], *, threshold: float) -> Floats:
    """How often every image comes in an epoch, from the classes of its objects: (N,)."""
    present = [set(some) for some in classes]
    counts = Counter(number for some in present for number in some)
    by_class = {
        number: max(1.0, math.sqrt(threshold * len(present) / count))
        for number, count in counts.items()
    }
    return np.array([max((by_class[n] for n in some), default=1.0) for some in present])


def sample_factors(samples: Sequence[Sample], *, threshold: float) -> Floats:
    """The factors of samples: (N,)."""
    classes = [[thing.category for thing in sample.annotations] for sample in samples]
    return repeat_factors(classes, threshold=threshold)


class RepeatedOrder(GroupedOrder):
    """Groups of one kind, in which an image comes as often as its factor says.

    The second copy of image i is called i + N, the third i + 2 N, so that copies are cropped and
    mirrored independently; the image is the remainder of a division by N.

    To look up an epoch takes a glance at all epochs before it, since their lengths differ.

    Args:
        kinds: The kind of every image: (N,).
        factors: How often an image comes in an epoch, 1 or more: (N,).
        seed: Decides the order and the copies.
        group: Images that leave a row together.
    """

    def __init__(self, kinds: npt.ArrayLike, factors: Floats, seed: int, *, group: int) -> None:
        super().__init__(kinds, seed, group=group)
        if len(factors) != self.count or factors.min() < 1:
            raise ValueError(f"{len(factors)} factors of {factors.min()} and more")
        self.factors = factors
        self._totals = [np.zeros_like(self._sizes)]  # of each kind before epoch 0, 1, ...

    def copies(self, epoch: int) -> IntArray:
        """How often every image comes in an epoch: (N,)."""
        whole = np.floor(self.factors)
        more = copy_uniforms(self.seed, epoch, self.count) < self.factors - whole
        return whole.astype(np.int64) + more

    def _before(self, epoch: int) -> IntArray:
        while len(self._totals) <= epoch:
            copies = self.copies(len(self._totals) - 1)
            counts = np.bincount(self.kinds, weights=copies, minlength=len(self._sizes))
            self._totals.append(self._totals[-1] + counts.astype(np.int64))
        return self._totals[epoch]

    def _images_of(self, epoch: int) -> IntArray:
        copies = self.copies(epoch)
        image = np.repeat(np.arange(self.count), copies)
        names: IntArray = image + self.count * places_in_rows(image)
        return names[shuffled(self.seed, epoch, len(names))]

    def _kinds_of(self, images: IntArray) -> IntArray:
        kinds: IntArray = self.kinds[images % self.count]
        return kinds

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"factors": self.factors, "_totals": self._totals}
