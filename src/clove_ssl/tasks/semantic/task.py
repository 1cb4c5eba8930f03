"""Semantic segmentation in VOC's layout: the quick downstream task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone, dilatable_names
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.labels.pixels import IGNORE, DenseLabels, SceneLabels, SomeLabels, VOCLabels
from clove_ssl.data.order import ImageOrder
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading, Task, TaskData, TaskModel, Vocabulary
from clove_ssl.tasks.detection.finding import AUGMENTED_LISTS, find_segmentation_lists
from clove_ssl.tasks.detection.scenes import write_voc_scenes
from clove_ssl.tasks.labels.samples import Split
from clove_ssl.tasks.loading.images import in_threads, size_of_file
from clove_ssl.tasks.pictures import paint_label_maps, spread
from clove_ssl.tasks.predictions import PREDICT_AGAIN, LabelMap, read_label_maps, write_label_maps
from clove_ssl.tasks.scoring.judging import score_label_maps
from clove_ssl.tasks.scoring.scores import Scores
from clove_ssl.tasks.semantic.config import VOCSemanticConfig
from clove_ssl.tasks.semantic.foreign_classes import check_are_voc
from clove_ssl.tasks.semantic.loading import (
    SemanticBatch,
    load_crops,
    load_whole_images,
    whole_image,
)
from clove_ssl.tasks.semantic.model import SemanticNetwork

SPLITS: tuple[Split, Split] = ("train", "test")
FILE = "classes.npz"


class SemanticTask(Task):
    """A class for every pixel, scored by mean intersection over union."""

    def __init__(self, config: VOCSemanticConfig) -> None:
        self.config = config

    def write_scenes(self, config: LabelledDataConfig, folder: Path) -> None:
        """Write the built-in scenes in VOC's layout, unless they are there."""
        for split, count in zip(SPLITS, (config.scenes_train, config.scenes_test), strict=True):
            written = folder / "VOC2012" / "ImageSets" / "Segmentation" / f"{split}.txt"
            if not written.is_file():
                write_voc_scenes(folder, split, count=count, size=config.scenes_size)

    def read_scenes(self, folder: Path) -> TaskData:
        """Read what :meth:`write_scenes` wrote."""
        names = SceneLabels.class_names
        train, test = (VOCLabels(folder, split, class_names=names) for split in SPLITS)
        return _task_data(train, test, notes=("Built-in scenes, since no --data was given.",))

    def read(self, config: LabelledDataConfig) -> TaskData:
        """Read a VOC folder, and refuse lists with files that are missing."""
        root, lists = _root(config), {split: _list(config, split) for split in SPLITS}
        train, test = (VOCLabels(root, lists[split]) for split in SPLITS)
        for labels in (train, test):
            _check_files(labels)
        check_are_voc(train, root)
        shown = f"Lists: {lists['train']} and {lists['test']}"
        other = (
            " (the protocol has train_aug and val)" if lists["train"] not in AUGMENTED_LISTS else ""
        )
        return _task_data(train, test, notes=(f"{shown}{other}.",))

    def read_test(self, config: LabelledDataConfig, scenes: Path) -> VOCLabels:
        """The test part alone."""
        if config.uses_scenes:
            return VOCLabels(scenes, "test", class_names=SceneLabels.class_names)
        return VOCLabels(_root(config), _list(config, "test"))

    def other_data(self, test: DenseLabels, vocabulary: Vocabulary) -> TaskData:
        """Label maps of the same classes."""
        theirs = tuple(test.class_names)
        if theirs != vocabulary.class_names:
            raise UserError(
                f"The model knows the classes {_listed(vocabulary.class_names)}, the data has "
                f"{_listed(theirs)}. Expected the same names in the same order."
            )
        return super().other_data(test, vocabulary)

    def take_fraction(self, data: TaskData, share: float, *, seed: int) -> TaskData:
        """The same data with a random share of the training images."""
        count = max(1, round(share * data.train_images))
        chosen = ImageOrder(data.train_images, seed).draws(0, count).indices.tolist()
        return replace(data, train=SomeLabels(data.train, sorted(chosen)), train_images=count)

    def backbone_config(self, architecture: str) -> BackboneConfig:
        """Dilated to stride 16 where the network can be, as in the protocol."""
        stride: Literal[16, 32] = 16 if architecture in dilatable_names() else 32
        return BackboneConfig(name=architecture, output_stride=stride, zero_init_last=False)

    def build_model(self, backbone: Backbone, data: TaskData, *, seed: int) -> SemanticNetwork:
        """The network with a fresh head."""
        return SemanticNetwork(self.config, backbone, classes=len(data.class_names))

    def training_batches(self, data: TaskData, reading: Reading) -> Iterable[SemanticBatch]:
        """Random crops in an order that the seed alone decides."""
        return load_crops(data.train, self.config, reading)

    def test_batches(self, data: TaskData, reading: Reading) -> Iterable[SemanticBatch]:
        """Every test image once, as a whole."""
        return load_whole_images(data.test, self.config, reading)

    def write_predictions(
        self,
        folder: Path,
        predictions: Sequence[tuple[int, Tensor]],
        data: TaskData,
        *,
        header: Mapping[str, Any],
    ) -> None:
        """Write the classes of all pixels, by the names of the images."""
        maps = {
            data.test.name(index): classes.numpy()
            for index, classes in sorted(predictions, key=lambda pair: pair[0])
        }
        write_label_maps(folder / FILE, maps, header=header)

    def score(self, folder: Path, test: VOCLabels) -> Scores:
        """Mean intersection over union."""
        predicted = read_label_maps(folder / FILE)
        _check_maps(predicted, test, folder / FILE)
        return score_label_maps(_pairs(test, predicted, folder / FILE), test.class_names)

    def paint(self, folder: Path, test: VOCLabels, pictures: Path, *, count: int) -> list[Path]:
        """Draw predictions beside the truth, for images spread over the test set."""
        predicted = read_label_maps(folder / FILE)
        images = []
        for index in spread(range(len(test)), count):
            name, (image, truth) = test.name(index), test.load(index)
            pixels = image.permute(1, 2, 0).numpy()
            images.append((name, pixels, truth.numpy(), predicted[name]))
        return paint_label_maps(images, test.class_names, pictures)

    def predict_image(self, model: TaskModel, image: Tensor) -> Tensor:
        """The class of every pixel, uint8 (H, W)."""
        return self.predict_images(model, [image])[0]

    def predict_images(self, model: TaskModel, images: Sequence[Tensor]) -> list[Tensor]:
        """The classes of the pixels of several images; those of one size pass together."""
        device = next(model.parameters()).device
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, image in enumerate(images):
            groups[tuple(image.shape)].append(number)
        found: dict[int, Tensor] = {}
        for numbers in groups.values():
            singles = [self._whole_image(images[number], number) for number in numbers]
            joined = SemanticBatch(
                torch.cat([each.images for each in singles]),
                torch.cat([each.labels for each in singles]),
                torch.cat([each.keys for each in singles]),
            )
            found |= dict(model.predict(joined.to(device)))
        return [found[number] for number in range(len(images))]

    def _whole_image(self, image: Tensor, number: int) -> SemanticBatch:
        labels = torch.full(image.shape[1:], IGNORE, dtype=torch.uint8)
        return whole_image(image, labels, longest=self.config.test_longest, number=number)


def _check_maps(predicted: Mapping[str, LabelMap], test: VOCLabels, path: Path) -> None:
    """Refuse maps of other images, and values that are no class."""
    for name in predicted.keys() - {test.name(index) for index in range(len(test))}:
        raise UserError(
            f"{path} has classes for {name}, which is no test image. Score predictions with the "
            "images they were made for."
        )
    last = len(test.class_names) - 1
    for name, classes in predicted.items():
        extreme = classes.min(initial=0) or classes.max(initial=0)
        if classes.dtype.kind not in "iu" or not 0 <= extreme <= last:
            raise UserError(
                f"{path} has {extreme} of type {classes.dtype} for a pixel of {name}; expected "
                f"whole numbers from 0 to {last}. {PREDICT_AGAIN}"
            )


def _pairs(
    test: VOCLabels, predicted: Mapping[str, LabelMap], path: Path
) -> Iterator[tuple[Tensor, Tensor]]:
    """True and predicted classes of every test image."""
    for index in range(len(test)):
        name, (_, truth) = test.name(index), test.load(index)
        if name not in predicted or predicted[name].shape != tuple(truth.shape):
            raise UserError(
                f"{path} has no classes for the {' x '.join(map(str, truth.shape))} pixels of "
                f"{name}. Score predictions with the images they were made for."
            )
        # Files of other programs may have numbers in another order of bytes, which torch refuses.
        yield truth, torch.from_numpy(predicted[name].astype(np.uint8))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _root(config: LabelledDataConfig) -> Path:
    if config.root is None or any(config.files("train") + config.files("test")):
        raise UserError(
            "voc-semantic reads label maps of a VOC folder, not annotation files. Give "
            "--data VOCdevkit and, if its lists have other names, --data.train-lists 2012:NAME; "
            "classes of your own are for clove finetune segment."
        )
    return config.root


def _list(config: LabelledDataConfig, split: Split) -> str:
    """The name of the list of VOC 2012 to learn from or to be tested on."""
    lists = config.lists(split)
    if not lists:
        return find_segmentation_lists(_root(config))[split]
    if len(lists) != 1 or not lists[0].removeprefix("2012:"):
        raise UserError(
            f"voc-semantic takes one list of VOC 2012, not {' '.join(lists)!r}. Write the names "
            "into one file in ImageSets/Segmentation and give it, such as 2012:train_aug."
        )
    return lists[0].removeprefix("2012:")


def _check_files(labels: VOCLabels) -> None:
    """Look at every file, so that a bad one stops a run before it begins."""
    in_threads(lambda index: _check_pair(labels, index), range(len(labels)))


def _check_pair(labels: VOCLabels, index: int) -> None:
    image, path = labels.paths(index)
    if not path.is_file():
        raise UserError(
            f"{path} does not exist, but {labels.name(index)} is in the list of its split. Unpack "
            "the VOC archive again, take the name off the list, or name another list, such as "
            "--data.train-lists 2012:train."
        )
    labels.labels(index, size=size_of_file(image))


def _task_data(train: VOCLabels, test: VOCLabels, *, notes: tuple[str, ...]) -> TaskData:
    return TaskData(
        train=train,
        test=test,
        train_images=len(train),
        test_images=len(test),
        class_names=train.class_names,
        notes=notes,
    )
