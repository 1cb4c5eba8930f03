"""What the images given to a probe offer: plain pictures, classes, masks, keypoints.

Layouts are told by the folders they consist of. Whatever is scored comes from a test
split; whatever is learned from comes from a training split without its images.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor

from clove_ssl.config.pretraining import SCENES, DataConfig, absolute_source
from clove_ssl.data.labels.classes import find_class_labels, read_class_labels
from clove_ssl.data.labels.mask_folders import (
    CityscapesLabels,
    MaskFolderLabels,
    mask_classes,
    read_picture,
)
from clove_ssl.data.labels.pixels import DenseLabels, SceneLabels, SomeLabels, VOCLabels
from clove_ssl.data.scenes import SceneSource
from clove_ssl.data.sources import FolderSource, ImageSource, open_source
from clove_ssl.errors import UserError
from clove_ssl.probes.classifiers import ClassSet
from clove_ssl.probes.features import read_image
from clove_ssl.probes.keypoints import Person, persons_of_dataset, persons_of_scenes
from clove_ssl.tasks.detection.finding import open_coco
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.semantic.coco import InstanceLabels

_TEST_SPLITS = ("test", "val", "valid", "validation")
_PARTS: tuple[Literal["train", "test"], ...] = ("train", "test")
_ATTEMPTS = 10
_EVERY = 5  # of images without splits, every fifth is tested on


@dataclass(frozen=True)
class ImageSet:
    """Images alone."""

    count: int
    load: Callable[[int], Tensor]  # uint8 (3, H, W)


@dataclass(frozen=True)
class ProbeData:
    """Everything one set of images can be used for; pairs are training and test."""

    images: ImageSet  # not to be learned from
    classes: tuple[ClassSet, ClassSet] | None = None
    masks: tuple[DenseLabels, DenseLabels] | None = None
    persons: Callable[[], tuple[list[Person], list[Person]]] | None = None


def open_probe_data(
    data: str,
    *,
    train: str | None = None,
    test_split: str | None = None,
    size: int = 128,
    counts: tuple[int, int] = (400, 200),
) -> ProbeData:
    """What ``data`` offers; ``size`` and ``counts`` (training, test) are those of scenes."""
    _check_parts(data, train, test_split)
    if data == SCENES:
        return _scenes(size, counts)
    root = Path(os.path.expanduser(data))
    if not root.is_dir():
        return _pictures(open_source(DataConfig(source=data)), train)
    if voc := _voc_folder(root):
        lists = (voc / "ImageSets" / "Segmentation").glob("*.txt")
        split = _test_split(test_split, {path.stem for path in lists})
        return _masks(VOCLabels(root, "train"), VOCLabels(root, split))
    if (root / "leftImg8bit").is_dir() and (root / "gtFine").is_dir():
        # Labels of Cityscapes' own test split are secret: its masks are blank.
        return _masks(CityscapesLabels(root, "train"), CityscapesLabels(root, test_split or "val"))
    if any((root / "annotations").glob("*.json")):
        return _coco(root)
    if (root / "images").is_dir() and (root / "masks").is_dir():
        return _mask_folder(root, test_split)
    if (root / "train").is_dir() and train is None:
        split = _test_split(test_split, {entry.name for entry in root.iterdir()})
        return _pictures(FolderSource(root / split), str(root / "train"))
    return _pictures(FolderSource(root), train)


def _check_parts(data: str, train: str | None, test_split: str | None) -> None:
    """Refuse to judge on what is learned from."""
    if test_split == "train":
        raise UserError(
            "--test-split train is what probes learn from, so nothing can be judged on it. Name "
            "another split, or leave it out."
        )
    if train is not None and absolute_source(train) == absolute_source(data):
        raise UserError(
            f"--train {train} and --data are the same images, which cannot be learned from and "
            "judged on. Leave --train out to have every fifth image judged on."
        )


def source_images(source: ImageSource) -> ImageSet:
    """The images of a source."""
    return ImageSet(len(source), lambda index: read_image(source, index))


def readable_images(source: ImageSource) -> ImageSet:
    """The images of a source, the next one standing in for each that cannot be read."""

    def load(index: int) -> Tensor:
        for offset in range(_ATTEMPTS):
            try:
                return read_image(source, (index + offset) % len(source))
            except UserError as error:
                problem = error
        raise problem

    return ImageSet(len(source), load)


def _scenes(size: int, counts: tuple[int, int]) -> ProbeData:
    learned, judged = SceneSource(counts[0], size, "train"), SceneSource(counts[1], size, "test")
    return ProbeData(
        images=source_images(judged),
        masks=(SceneLabels(counts[0], size, "train"), SceneLabels(counts[1], size, "test")),
        persons=lambda: (persons_of_scenes(learned), persons_of_scenes(judged)),
    )


def _masks(train: DenseLabels, test: DenseLabels) -> ProbeData:
    images = ImageSet(len(test), lambda index: test.load(index)[0])
    return ProbeData(images=images, masks=(train, test))


def _voc_folder(root: Path) -> Path | None:
    folders = (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012")
    return next((folder for folder in folders if (folder / "SegmentationClass").is_dir()), None)


def _coco(root: Path) -> ProbeData:
    """Masks from the file of instances, persons from that of keypoints; one of them is enough."""
    files = [path.name for path in (root / "annotations").glob("*_train*.json")]
    masks, persons, shown = None, None, None
    if any(name.startswith("instances_train") for name in files):
        shown = open_coco(root, "test")
        masks = (InstanceLabels(open_coco(root, "train"), root), InstanceLabels(shown, root))
    if any(name.startswith("person_keypoints_train") for name in files):
        people = {part: open_coco(root, part, task="person_keypoints") for part in _PARTS}
        shown = shown or people["test"]
        persons = partial(_people, people["train"], people["test"])
    if shown is None:
        raise UserError(
            f"{root / 'annotations'} holds neither instances nor person_keypoints to train on. "
            "Expected instances_train2017.json, person_keypoints_train.json or the like."
        )
    paths = [sample.image for sample in shown.samples]
    images = ImageSet(len(paths), lambda index: read_picture(paths[index]))
    return ProbeData(images=images, masks=masks, persons=persons)


def _people(train: DetectionDataset, test: DetectionDataset) -> tuple[list[Person], list[Person]]:
    return persons_of_dataset(train), persons_of_dataset(test)


def _mask_folder(root: Path, test_split: str | None) -> ProbeData:
    names = mask_classes(root)
    if (root / "images" / "train").is_dir():
        split = _test_split(test_split, {entry.name for entry in (root / "images").iterdir()})
        return _masks(MaskFolderLabels(root, "train", names), MaskFolderLabels(root, split, names))
    whole = MaskFolderLabels(root, "", names)
    if len(whole) < _EVERY:
        raise UserError(
            f"{root} has {len(whole)} images with masks and no splits, of which every fifth is "
            "tested on. Give more images, or folders train and test below images and masks."
        )
    places = range(len(whole))
    tested = [place for place in places if place % _EVERY == _EVERY - 1]
    learned = [place for place in places if place % _EVERY != _EVERY - 1]
    return _masks(SomeLabels(whole, learned), SomeLabels(whole, tested))


def _pictures(source: ImageSource, train: str | None) -> ProbeData:
    """Plain images, with classes where the source has them."""
    if train is not None:
        learned = open_source(DataConfig(source=train))
        known = ClassSet.of(learned, read_class_labels(learned))
        return _classified(known, ClassSet.of(source, read_class_labels(source)))
    labels = find_class_labels(source)
    if labels is not None:
        known, asked = ClassSet.of(source, labels).split(_EVERY)
        if asked.chosen:
            return _classified(known, asked)
    return ProbeData(images=source_images(source))


def _classified(known: ClassSet, asked: ClassSet) -> ProbeData:
    images = ImageSet(
        len(asked.chosen), lambda index: read_image(asked.source, asked.chosen[index])
    )
    return ProbeData(images=images, classes=(known, asked))


def _test_split(asked: str | None, known: Iterable[str]) -> str:
    """The split to score on; one that does not exist is refused where it is opened."""
    if asked is not None:
        return asked
    return next((name for name in _TEST_SPLITS if name in known), _TEST_SPLITS[0])
