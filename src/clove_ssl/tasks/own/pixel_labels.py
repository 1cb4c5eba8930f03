"""A class for every pixel, from masks that somebody drew or from the outlines of objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from clove_ssl.data.labels.mask_folders import read_picture
from clove_ssl.data.labels.pixels import IGNORE, DenseLabels
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.loading.images import in_threads
from clove_ssl.tasks.own.checks import class_problems
from clove_ssl.tasks.own.dataset import TRAIN, Item, OwnData
from clove_ssl.tasks.own.readers.masks import check_mask, read_classes
from clove_ssl.tasks.semantic.coco import paint
from clove_ssl.tasks.semantic.loading import resized, resized_labels

BACKGROUND = "background"


class OwnPixels:
    """Images of a split with label maps."""

    def __init__(self, items: Sequence[Item], class_names: tuple[str, ...]) -> None:
        self.class_names = class_names
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The images with their sizes."""
        return tuple(item.sample for item in self._items)

    def name(self, index: int) -> str:
        """What an image is called in files of predictions."""
        return str(self._items[index].sample.identifier)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        item = self._items[index]
        image = read_picture(item.sample.image)
        labels = paint(item.sample) if item.label_map is None else read_classes(item.label_map)
        if tuple(image.shape[1:]) != labels.shape:
            raise UserError(
                f"{item.sample.image} has {tuple(image.shape[1:])} pixels, but its labels "
                f"{labels.shape}. Expected equal heights and widths; make the labels again."
            )
        return image, torch.from_numpy(labels)

    def present_classes(self) -> list[set[int]]:
        """The classes that each image shows; every mask is looked at."""
        return in_threads(self._present, self._items)

    def _present(self, item: Item) -> set[int]:
        if item.label_map is None:
            return {1 + thing.category for thing in item.sample.annotations}
        size = (item.sample.height, item.sample.width)
        return check_mask(item.label_map, self.class_names, size)


class ReducedPixels:
    """The same images, those with a longer short side reduced to ``side``."""

    def __init__(self, whole: DenseLabels, side: int) -> None:
        self.class_names = whole.class_names
        self._whole, self._side = whole, side

    def __len__(self) -> int:
        return len(self._whole)

    def load(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) and its label map (H, W), both uint8."""
        image, labels = self._whole.load(index)
        shrink = min(1.0, self._side / min(labels.shape))
        if shrink == 1.0:
            return image, labels
        shape = (round(shrink * labels.shape[0]), round(shrink * labels.shape[1]))
        return resized(image, shape), resized_labels(labels, shape)


def pixel_labels(data: OwnData, split: str) -> OwnPixels:
    """The images of a split that say something about their pixels."""
    if data.has_maps:
        if not data.map_names:
            raise UserError(
                f"Nothing says what the numbers of the masks below {data.root} mean. Write the "
                "names of the classes from 0 on, one a line, the background first, into "
                f"{data.root / 'classes.txt'}."
            )
        kept = [item for item in data.items[split] if item.label_map is not None]
        names = data.map_names
    else:
        kept = _painted(data.items[split])
        names = (BACKGROUND, *data.class_names)
    if not kept:
        raise UserError(
            f"None of the {len(data.items[split])} {split} images of {data.root} has a mask or the "
            "outline of an object, which segment learns from. Boxes alone serve detect: clove "
            "finetune detect."
        )
    if not 2 <= len(names) <= IGNORE:
        raise UserError(
            f"{data.root} has {len(names)} classes of pixels; expected 2 to {IGNORE}, the "
            "background included, which is the first one."
        )
    return OwnPixels(kept, names)


def map_problems(parts: Mapping[str, OwnPixels], *, root: Path) -> list[str]:
    """What is wrong with label maps, all of which are looked at, so that a bad one stops a run."""
    counts = {
        split: Counter(number for present in part.present_classes() for number in present)
        for split, part in parts.items()
    }
    names = parts[TRAIN].class_names
    if len(counts[TRAIN]) < 2:
        only = "".join(f", {names[number]!r}" for number in counts[TRAIN])
        raise UserError(
            f"All pixels of the {len(parts[TRAIN])} train masks of {root} are of one class{only}, "
            "so there is nothing to tell apart. Expected the numbers of classes, 0 to "
            f"{len(names) - 1}; {IGNORE} says that nobody judged a pixel. Where {IGNORE} marks an "
            "object, write its number instead."
        )
    return list(class_problems(counts, names, what="pixel"))


def _painted(items: Sequence[Item]) -> list[Item]:
    """Images whose objects all have outlines; one without objects is all background."""
    kept = [item for item in items if all(thing.mask for thing in item.sample.annotations)]
    # Where all objects are boxes alone, what is left would teach that everything is background.
    has_objects = any(item.sample.annotations for item in kept)
    return kept if has_objects or len(kept) == len(items) else []
