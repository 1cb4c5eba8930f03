"""Detection, instance segmentation and keypoints, in VOC's and in COCO's layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading, Task, TaskData, TaskModel, Vocabulary
from clove_ssl.tasks.detection.coco_scores import why_no_coco_scores
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.detection.finding import (
    check_same_classes,
    find_voc_lists,
    open_coco,
    open_voc,
    parse_voc_lists,
)
from clove_ssl.tasks.detection.model import DetectionNetwork
from clove_ssl.tasks.detection.scenes import (
    read_coco_scenes,
    read_voc_scenes,
    write_coco_scenes,
    write_voc_scenes,
)
from clove_ssl.tasks.labels.samples import DetectionDataset, OnFault, Split
from clove_ssl.tasks.loading.batches import load_test_batches, load_training_batches, training_order
from clove_ssl.tasks.loading.images import InputSizes, TrainingImages, check_images, test_batch
from clove_ssl.tasks.loading.order import GroupedOrder
from clove_ssl.tasks.loading.selection import Labels, check_testable, select_targets, take_fraction
from clove_ssl.tasks.pictures import paint_detections
from clove_ssl.tasks.predictions import Record, read_detections, write_detections
from clove_ssl.tasks.rcnn.detector import build_detector
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageDetections
from clove_ssl.tasks.rcnn.pixels import resized_shape
from clove_ssl.tasks.scoring.judging import Kind, score_predictions
from clove_ssl.tasks.scoring.scores import Scores

SPLITS: tuple[Split, Split] = ("train", "test")
FILE = "detections.json"
PUBLISHED_LISTS = {"train": "2007:trainval 2012:trainval", "test": "2007:test"}


class DetectionTask(Task):
    """Boxes of objects, and masks or keypoints where the detector has a head for them."""

    def __init__(self, config: DetectionConfig) -> None:
        self.config = config

    @property
    def labels(self) -> Labels:
        """What is learned from an object."""
        if self.config.detector.keypoints:
            return "keypoints"
        return "masks" if self.config.detector.masks else "boxes"

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes, unless they are there."""
        write = write_voc_scenes if self.config.layout == "voc" else write_coco_scenes
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            if not _scenes_mark(folder, self.config.layout, split).is_file():
                write(folder, split, count=count, size=config.scenes_size)

    def read_scenes(self, folder: Path) -> TaskData:
        """Read what :meth:`write_scenes` wrote."""
        train, test = (self._read_scenes(folder, split) for split in SPLITS)
        return self._task_data(train, test, ["Built-in scenes, since no --data was given."])

    def read(self, config: LabelledDataConfig) -> TaskData:
        """Read the files of a user, and look at every image."""
        train, test = (self._read(config, split) for split in SPLITS)
        check_same_classes(train, test)
        notes = self._notes(config, train, test)
        data = self._task_data(train, test, notes)
        check_images(data.train.samples)
        check_images(data.test.samples)
        return data

    def read_test(self, config: LabelledDataConfig, scenes: Path) -> DetectionDataset:
        """The test part alone."""
        if config.uses_scenes:
            return self._read_scenes(scenes, "test")
        return self._read(config, "test")

    def other_data(self, test: DetectionDataset, vocabulary: Vocabulary) -> TaskData:
        """Images of the same classes, under the same numbers."""
        known = self.without_data(vocabulary)
        # A detector without keypoints does not care which ones the files have.
        points = test.keypoint_names if vocabulary.keypoint_names else ()
        check_same_classes(known.train, replace(test, keypoint_names=points))
        return replace(known, test=test, test_images=len(test.samples))

    def take_fraction(self, data: TaskData, share: float, *, seed: int) -> TaskData:
        """The same data with a random share of the training images."""
        train = take_fraction(data.train, share, seed=seed)
        return replace(data, train=train, train_images=len(train.samples))

    def backbone_config(self, architecture: str) -> BackboneConfig:
        """All stages with strides 4 to 32; residual blocks do not start as the identity."""
        return BackboneConfig(name=architecture, zero_init_last=False)

    def build_model(self, backbone: Backbone, data: TaskData, *, seed: int) -> DetectionNetwork:
        """The detector with fresh heads."""
        detector = build_detector(
            self.config.detector,
            backbone,
            classes=len(data.class_names),
            keypoints=len(data.train.keypoint_names),
            seed=seed,
        )
        return DetectionNetwork(detector, data.test)

    def training_batches(self, data: TaskData, reading: Reading) -> Iterable[DetectionBatch]:
        """Batches of wide or of tall images, in an order that the seed alone decides."""
        order = self.training_order(data.train, seed=reading.seed, group=reading.batch_size)
        sizes = InputSizes(self.config.train_sides, self.config.longest)
        return load_training_batches(
            self.training_images(data.train, sizes, order),
            reading.batch_order(order),
            start_step=reading.start_step,
            total_steps=reading.stop_step,
            workers=reading.workers,
            prefetch=reading.prefetch,
            pin_memory=reading.pin_memory,
        )

    def training_images(
        self, dataset: DetectionDataset, sizes: InputSizes, order: GroupedOrder
    ) -> TrainingImages:
        """Training images with their targets."""
        return TrainingImages(dataset, self.labels, sizes=sizes, order=order)

    def training_order(self, dataset: DetectionDataset, *, seed: int, group: int) -> GroupedOrder:
        """Every image once in an epoch."""
        return training_order(dataset, seed=seed, group=group)

    def test_batches(self, data: TaskData, reading: Reading) -> Iterable[DetectionBatch]:
        """Every test image once."""
        return load_test_batches(
            data.test,
            sizes=InputSizes((self.config.test_side,), self.config.longest),
            processes=reading.processes,
            rank=reading.rank,
            workers=reading.workers,
            prefetch=reading.prefetch,
            pin_memory=reading.pin_memory,
        )

    def write_predictions(
        self,
        folder: Path,
        predictions: Sequence[Record],
        data: TaskData,
        *,
        header: Mapping[str, Any],
    ) -> None:
        """Write all detections in COCO's result format."""
        write_detections(folder / FILE, predictions, samples=data.test.samples, header=header)

    def why_not_scored(self) -> str:
        """What is missing for COCO's rules."""
        return why_no_coco_scores()

    def score(self, folder: Path, test: DetectionDataset) -> Scores:
        """Average precision by the rules of the dataset."""
        kinds: dict[Labels, tuple[Kind, ...]] = {
            "boxes": ("box",),
            "masks": ("box", "mask"),
            "keypoints": ("keypoints", "box"),
        }
        rules: tuple[Kind, ...] = (
            ("voc", "box") if self.config.layout == "voc" else kinds[self.labels]
        )
        return score_predictions(rules, test, read_detections(folder / FILE))

    def paint(
        self, folder: Path, test: DetectionDataset, pictures: Path, *, count: int
    ) -> list[Path]:
        """Draw detections beside the truth, for images spread over the test set."""
        records = read_detections(folder / FILE).records
        return paint_detections(test, records, pictures, count=count)

    def vocabulary(self, data: TaskData) -> Vocabulary:
        """Classes, their numbers in the files, and keypoints."""
        train: DetectionDataset = data.train
        return Vocabulary(train.class_names, train.category_ids, train.keypoint_names)

    def without_data(self, vocabulary: Vocabulary) -> TaskData:
        """The same classes and keypoints, and no images."""
        empty = DetectionDataset(
            (), vocabulary.class_names, vocabulary.category_ids, vocabulary.keypoint_names
        )
        return TaskData(empty, empty, 0, 0, vocabulary.class_names)

    def predict_image(self, model: TaskModel, image: Tensor) -> ImageDetections:
        """The objects of an image, resized as test images are."""
        return self.predict_images(model, [image])[0]

    def predict_images(self, model: TaskModel, images: Sequence[Tensor]) -> list[ImageDetections]:
        """The objects of several images.

        Only those of one size after resizing pass together, since padding would change results.
        """
        assert isinstance(model, DetectionNetwork)
        device = next(model.parameters()).device
        sizes = InputSizes((self.config.test_side,), self.config.longest)
        arrays = [image.permute(1, 2, 0).contiguous().numpy() for image in images]
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, pixels in enumerate(arrays):
            height, width = pixels.shape[:2]
            (side,) = sizes.short_sides
            shape = resized_shape(height, width, short_side=side, longest=sizes.longest)
            groups[shape].append(number)
        found: dict[int, ImageDetections] = {}
        for numbers in groups.values():
            batch = test_batch([arrays[n] for n in numbers], sizes=sizes, numbers=numbers)
            results = model.detector.detect(batch.to(device))
            found |= {n: each.to("cpu") for n, each in zip(numbers, results, strict=True)}
        return [found[number] for number in range(len(images))]

    def _read_scenes(self, folder: Path, split: Split) -> DetectionDataset:
        if self.config.layout == "voc":
            return read_voc_scenes(folder, split)
        return read_coco_scenes(folder, split, task=self.config.annotation_kind)

    def _read(self, config: LabelledDataConfig, split: Split) -> DetectionDataset:
        lists = ",".join(config.lists(split))
        annotations, images = config.files(split)
        if self.config.layout == "voc":
            if config.root is None or annotations or images:
                raise UserError(
                    f"{self.config.name} reads a VOC folder, not annotation files. Give --data "
                    "VOCdevkit and, if its lists have other names, --data.train-lists and "
                    "--data.test-lists; or choose coco-c4 or coco-fpn."
                )
            return open_voc(
                config.root,
                split,
                lists=parse_voc_lists(lists) if lists else (),
                faulty=FAULTY.get(config.faulty, "refuse"),
            )
        if lists:
            raise UserError(
                f"{self.config.name} reads COCO's format, which has no lists. Leave out "
                f"--data.{split}-lists, or choose voc-c4."
            )
        return open_coco(
            config.root,
            split,
            task=self.config.annotation_kind,
            annotations=annotations,
            images=images,
            faulty=None if config.faulty == "auto" else FAULTY[config.faulty],
        )

    def _notes(
        self, config: LabelledDataConfig, train: DetectionDataset, test: DetectionDataset
    ) -> list[str]:
        notes = [
            f"{len(part.left_out)} faulty annotations were left out, the first: {part.left_out[0]}"
            for part in (train, test)
            if part.left_out
        ]
        if self.config.layout == "voc" and config.root is not None:
            for split in SPLITS:
                shown = config.lists(split) or [
                    f"{year}:{name}" for year, name in find_voc_lists(config.root)[split]
                ]
                published = PUBLISHED_LISTS[split]
                other = f" (the protocol has {published})" if " ".join(shown) != published else ""
                notes.append(f"Lists of the {split} images: {' '.join(shown)}{other}")
        return notes

    def _task_data(
        self, train: DetectionDataset, test: DetectionDataset, notes: Sequence[str]
    ) -> TaskData:
        selection = select_targets(train, self.labels)
        check_testable(test, self.labels)
        return TaskData(
            train=selection.dataset,
            test=test,
            train_images=len(selection.dataset.samples),
            test_images=len(test.samples),
            class_names=train.class_names,
            notes=(*notes, f"Training: {selection.describe()}"),
        )


FAULTY: dict[str, OnFault] = {"refuse": "refuse", "leave-out": "leave out"}


def _scenes_mark(folder: Path, layout: str, split: Split) -> Path:
    """The file of a split that is written last."""
    if layout == "voc":
        return folder / "VOC2012" / "ImageSets" / "Segmentation" / f"{split}.txt"
    return folder / "annotations" / f"person_keypoints_{split}.json"
