"""DensePose: the part of the body and the place on it that every pixel of a person shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.densepose.config import COCODensePoseConfig
from clove_ssl.tasks.densepose.detector import (
    DensePoseDetections,
    DensePoseDetector,
    build_densepose_detector,
)
from clove_ssl.tasks.densepose.loading import DensePoseImages
from clove_ssl.tasks.densepose.reader import DensePoseDataset, labels_of, open_densepose
from clove_ssl.tasks.densepose.records import IUV, encode_surface, image_persons, paint_surfaces
from clove_ssl.tasks.densepose.scenes import (
    read_densepose_scenes,
    scenes_file,
    write_densepose_scenes,
)
from clove_ssl.tasks.densepose.scores import Kind, score_densepose
from clove_ssl.tasks.densepose.surface_files import open_mirror, open_surface
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.task import FAULTY, FILE, SPLITS, DetectionTask
from clove_ssl.tasks.labels.samples import DetectionDataset, Split
from clove_ssl.tasks.loading.images import InputSizes
from clove_ssl.tasks.loading.order import GroupedOrder
from clove_ssl.tasks.predictions import Predictions, Record, read_detections
from clove_ssl.tasks.rcnn.instances import ImageDetections
from clove_ssl.tasks.scoring.judging import score_predictions
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable

_RULES: dict[Kind, str] = {
    "gpsm": "DensePose average precision by surface and mask",
    "gps": "DensePose average precision by surface",
    "segm": "DensePose average precision by mask",
}


class DensePoseTask(DetectionTask):
    """Boxes of persons, and part, U and V of their pixels."""

    config: COCODensePoseConfig

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes, unless they are there."""
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            if not scenes_file(folder, split).is_file():
                write_densepose_scenes(folder, split, count=count, size=config.scenes_size)

    def read(self, config: LabelledDataConfig) -> TaskData:
        """Read the files of a user, and look at every image."""
        for split in SPLITS:
            self._surface_folder(split)  # before annotations are read, which takes a while
        return super().read(config)

    def build_model(self, backbone: Backbone, data: TaskData, *, seed: int) -> DensePoseNetwork:
        """The detector with fresh heads."""
        config = self.config
        detector = build_densepose_detector(
            config.detector, config.surface_head, backbone, seed=seed
        )
        return DensePoseNetwork(detector, data.test)

    def score(self, folder: Path, test: DetectionDataset) -> Scores:
        """DensePose scores of every asked kind, and COCO's average precision of boxes."""
        assert isinstance(test, DensePoseDataset)
        predictions = read_detections(folder / FILE)
        boxes = score_predictions(("box",), test, predictions)  # refuses predictions of other data
        tables = _surface_tables(self.config.scores, test, predictions)
        return replace(boxes, tables=(*tables, *boxes.tables))

    def paint(
        self, folder: Path, test: DetectionDataset, pictures: Path, *, count: int
    ) -> list[Path]:
        """Draw surfaces beside the truth, for images spread over the test set."""
        assert isinstance(test, DensePoseDataset)
        return paint_surfaces(test, read_detections(folder / FILE).records, pictures, count=count)

    def training_images(
        self, dataset: DetectionDataset, sizes: InputSizes, order: GroupedOrder
    ) -> DensePoseImages:
        """Images with the labels of their persons."""
        assert isinstance(dataset, DensePoseDataset)
        return DensePoseImages(dataset, sizes=sizes, order=order)

    def _read_scenes(self, folder: Path, split: Split) -> DensePoseDataset:
        dataset = read_densepose_scenes(folder, split)
        return dataset if self.config.mirror else replace(dataset, mirror=None)

    def _read(self, config: LabelledDataConfig, split: Split) -> DensePoseDataset:
        if config.lists(split):
            raise UserError(
                f"{self.config.name} reads DensePose-COCO's format, which has no lists. Leave out "
                f"--data.{split}-lists."
            )
        annotations, images = config.files(split)
        folder = self._surface_folder(split)
        surface = open_surface(folder) if folder is not None and split == "test" else None
        mirror = open_mirror(folder) if folder is not None and split == "train" else None
        dataset = open_densepose(
            config.root,
            split,
            annotations=annotations,
            images=images,
            faulty=None if config.faulty == "auto" else FAULTY[config.faulty],
        )
        return replace(dataset, surface=surface, mirror=mirror)

    def _surface_folder(self, split: Split) -> Path | None:
        """The folder of the surface files, if the split needs any."""
        needed = self.config.mirror if split == "train" else self.config.scores_surface
        if needed and self.config.surface is None:
            raise UserError(
                "DensePose-COCO's labels speak of a body whose surface files may not be handed on, "
                "and --task.surface names no folder with them. Give --task.surface FOLDER "
                "(docs/densepose.md lists the files), or do without: --task.scores segm "
                "--task.no-mirror, which is not the published protocol."
            )
        return self.config.surface if needed else None

    def _task_data(
        self, train: DetectionDataset, test: DetectionDataset, notes: Sequence[str]
    ) -> TaskData:
        """Keep training images in which somebody has labels."""
        assert isinstance(train, DensePoseDataset)
        assert isinstance(test, DensePoseDataset)
        samples = tuple(
            sample
            for sample in train.samples
            if any(labels_of(person) is not None for person in sample.annotations)
        )
        for what, part in (("training", train), ("test", test)):
            if part.labelled == 0:
                raise UserError(
                    f"None of the {len(part.samples)} {what} images has a person with DensePose "
                    "labels (dp_x, dp_y, dp_I, dp_U, dp_V). Give annotations of DensePose-COCO."
                )
        labelled = replace(train, samples=samples)
        unmirrored = "Training images are not mirrored; the protocol mirrors half of them."
        notes = [
            *notes,
            f"{labelled.labelled:,} persons with DensePose labels to learn from; left out: "
            f"{len(train.samples) - len(samples):,} images without any",
            f"{test.labelled:,} persons with DensePose labels to be tested on",
            *([unmirrored] if train.mirror is None else []),
        ]
        return super()._task_data(labelled, test, notes)


def _surface_tables(
    kinds: Sequence[Kind], test: DensePoseDataset, predictions: Predictions
) -> list[ScoreTable]:
    persons = image_persons(test, predictions.records)
    scored = score_densepose(persons, kinds=kinds, surface=test.surface)
    labelled = float(test.labelled)
    return [
        ScoreTable(
            kind,
            _RULES[kind],
            scores.summary(),
            {name: row | {"objects": labelled} for name, row in scores.by_class().items()},
        )
        for kind, scores in scored.items()
    ]


class DensePoseNetwork(DetectionNetwork):
    """Trains a DensePose detector, and writes what it finds as records.

    Args:
        detector: The model.
        test: Whose images the keys of test batches count.
    """

    headline = ("loss_densepose_I", "loss_densepose_U")
    predictors = (*DetectionNetwork.predictors, "person", "part", "u", "v")

    def records(self, keys: Tensor, found: Sequence[ImageDetections]) -> list[Record]:
        """The persons of the test images with these keys (B,), on the host."""
        records: list[Record] = []
        for key, each in zip(keys.tolist(), found, strict=True):
            assert isinstance(each, DensePoseDetections)
            own = super().records(keys.new_tensor([key]), [each])
            for record, surface in zip(own, each.surfaces, strict=False):  # only the best have one
                record[IUV] = encode_surface(surface)
            records += own
        return records

    def facts(self) -> Mapping[str, str]:
        """What the self-check shows."""
        assert isinstance(self.detector, DensePoseDetector)
        head = self.detector.surface_config
        facts = dict(super().facts())
        return facts | {
            "detector": f"{facts['detector']}, surface",
            "surface head": f"{head.convs} convolutions of {head.width} channels on regions that "
            f"overlap a person by more than {head.overlap_above:g}",
            "surface losses": f"{head.person_weight:g} person, {head.part_weight:g} part, "
            f"{head.surface_weight:g} U and V, summed over {head.surface_images} images",
        }
