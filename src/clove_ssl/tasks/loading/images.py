"""Images of a dataset, resized and with their targets, batch by batch in worker processes.

What a training batch holds is a pure function of (seed, positions): neither workers nor a restart
nor the number of processes change a pixel.

A worker cannot speak to the user; torch would bury its words in a traceback. So what is wrong with
a file travels in place of the batch, as :class:`Refusal`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from clove_ssl.data.decode import DecodeError, decode, image_size
from clove_ssl.data.order import view_uniforms
from clove_ssl.data.whole_files import open_regular, read_whole
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample
from clove_ssl.tasks.loading.geometry import Placement, mirror_order
from clove_ssl.tasks.loading.order import GroupedOrder
from clove_ssl.tasks.loading.selection import Labels
from clove_ssl.tasks.loading.targets import PackedObjects, make_targets
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageTargets
from clove_ssl.tasks.rcnn.pixels import Pixels, resized_shape

_HEADER = 1 << 16  # bytes that nearly always hold the size of an image
_READERS = 16
_ENDS = ((b"\xff\xd8", b"\xff\xd9"), (b"\x89PNG", b"IEND"))
"""How files of JPEG and PNG start and end."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Refusal:
    """Why there is no batch."""

    message: str


@dataclass(frozen=True)
class InputSizes:
    """Heights and widths that images get."""

    short_sides: tuple[int, ...]
    """Lengths of the shorter side; one of them is drawn for every training image."""
    longest: int = 1333
    """The longer side never exceeds this."""

    def __post_init__(self) -> None:
        if not self.short_sides or min(*self.short_sides, self.longest) < 1:
            raise UserError(
                f"Images cannot have a short side of {self.short_sides} and at most "
                f"{self.longest} pixels. Give lengths of 1 and more."
            )


class TrainingImages(Dataset[DetectionBatch | Refusal]):
    """Batches by the positions of their images in the row of training images.

    Args:
        dataset: Images that all have targets.
        labels: What is learned from them.
        sizes: Lengths of the short side to draw from.
        order: Which image stands at a position.
        mirror: Mirror half of the images.
    """

    def __init__(
        self,
        dataset: DetectionDataset,
        labels: Labels,
        *,
        sizes: InputSizes,
        order: GroupedOrder,
        mirror: bool = True,
    ) -> None:
        points = len(dataset.keypoint_names) if labels == "keypoints" else 0
        self._objects = PackedObjects(dataset.samples, labels, keypoints=points)
        self._sizes, self._order, self._mirror = sizes, order, mirror
        swaps = labels == "keypoints" and mirror
        self._mirror_order = mirror_order(dataset.keypoint_names) if swaps else ()

    def __getitem__(self, positions: range) -> DetectionBatch | Refusal:
        draws = self._order.draws(positions.start, positions.stop)
        images: list[Tensor] = []
        targets: list[ImageTargets] = []
        originals = []
        for epoch, index in zip(draws.epochs.tolist(), draws.indices.tolist(), strict=True):
            objects = self._objects[index % len(self._objects)]  # an order may have copies
            try:
                pixels = read_image(objects.image, objects.size)
            except UserError as error:
                return Refusal(str(error))
            placement = self._place(epoch, index, objects.size)
            images.append(placement.image(pixels))
            targets.append(make_targets(objects, placement, mirror_order=self._mirror_order))
            originals.append(objects.size)
        keys = torch.arange(positions.start, positions.stop)
        return DetectionBatch(tuple(images), tuple(targets), tuple(originals), keys)

    def _place(self, epoch: int, index: int, size: tuple[int, int]) -> Placement:
        # Looked up by image and epoch: the same whichever worker reads it.
        length, side = view_uniforms(self._order.seed, epoch, index, 2)
        choices = self._sizes.short_sides
        # One of the published lengths, each equally often; not any length between them.
        short_side = choices[int(length * len(choices))]
        new = resized_shape(*size, short_side=short_side, longest=self._sizes.longest)
        return Placement(size, new, mirrored=self._mirror and side < 0.5)


class TestImages(Dataset[DetectionBatch | Refusal]):
    """Batches by the numbers of their samples, which are also their keys; no targets."""

    __test__ = False  # the name is no test's

    def __init__(self, dataset: DetectionDataset, *, sizes: InputSizes) -> None:
        if len(sizes.short_sides) != 1:
            raise ValueError(f"one length of the short side, not {sizes.short_sides}")
        self._files = [(s.image, (s.height, s.width)) for s in dataset.samples]
        self._sizes = sizes

    def __getitem__(self, numbers: Sequence[int]) -> DetectionBatch | Refusal:
        try:
            images = [read_image(*self._files[number]) for number in numbers]
        except UserError as error:
            return Refusal(str(error))
        return test_batch(images, sizes=self._sizes, numbers=numbers)


def test_batch(
    images: Sequence[Pixels], *, sizes: InputSizes, numbers: Sequence[int]
) -> DetectionBatch:
    """Images (H, W, 3) of one short side and without targets, under these numbers."""
    (short_side,) = sizes.short_sides
    resized, originals = [], []
    for pixels in images:
        size = (pixels.shape[0], pixels.shape[1])
        new = resized_shape(*size, short_side=short_side, longest=sizes.longest)
        resized.append(Placement(size, new).image(pixels))
        originals.append(size)
    return DetectionBatch(tuple(resized), (), tuple(originals), torch.tensor(numbers))


def read_image(path: Path, size: tuple[int, int]) -> Pixels:
    """The pixels (H, W, 3) of a file whose annotations speak of this height and width."""
    try:
        pixels = decode(read_whole(path))
    except (DecodeError, OSError) as error:
        raise _unreadable(path, error) from None
    check_same_size(path, (pixels.shape[1], pixels.shape[2]), size)
    array: Pixels = pixels.permute(1, 2, 0).numpy()
    return array


def check_images(samples: Sequence[Sample]) -> None:
    """Look at both ends of every file, so that a bad one stops a run before it begins."""
    in_threads(_check_file, samples)


def in_threads(look: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Look at all items, several at a time; what is wrong with the first bad one is raised."""
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(look, items))


def _check_file(sample: Sample) -> None:
    check_same_size(sample.image, size_of_file(sample.image), (sample.height, sample.width))


def size_of_file(path: Path) -> tuple[int, int]:
    """Height and width of an image file whose head can be read and which is not cut off."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEADER)
            try:
                size = image_size(head)
            # A thumbnail or a colour profile may stand before the size.
            except DecodeError:  # perhaps a long header
                size = image_size(head + file.read())
            file.seek(-min(_HEADER, file.seek(0, os.SEEK_END)), os.SEEK_END)
            if _seems_cut_off(head, file.read()):
                file.seek(0)
                decode(file.read())
    except (DecodeError, OSError) as error:
        raise _unreadable(path, error) from None
    return size


def _seems_cut_off(head: bytes, tail: bytes) -> bool:
    """Whether the mark that ends a JPEG or a PNG is missing; other formats have none."""
    return any(head.startswith(start) and end not in tail for start, end in _ENDS)


def _unreadable(path: Path, error: DecodeError | OSError) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(
        f"{path} cannot be read: {reason}. Copy or download it again, or take the image out of the "
        "annotations."
    )


def check_same_size(path: Path, found: tuple[int, int], expected: tuple[int, int]) -> None:
    """Refuse a height and width that are not those of the upright image."""
    if found == expected:
        return
    cure = "Use the images that the annotations were made for, or correct the sizes."
    if found == expected[::-1]:
        cure = (
            "If it has an EXIF note to be shown turned, the annotations were made without turning "
            "it: take the note out of the photo (exiftool -Orientation= FILE), and leave the sizes "
            "as they are."
        )
    raise UserError(
        f"{path} has {found[1]} x {found[0]} pixels, but its annotation says {expected[1]} x "
        f"{expected[0]}, so no box would fit. {cure}"
    )
