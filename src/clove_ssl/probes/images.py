"""Images of one size for probes, decoded by several threads and kept as bytes.

Whatever its shape, an image is scaled to a square, as the labels of its pixels are;
so every probe and every backbone sees the same pixels, and batches are plain tensors.

Dimensions: N images of S x S pixels, B of them in a batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.labels.pixels import DenseLabels
from clove_ssl.data.sources import ImageSource
from clove_ssl.errors import UserError

BATCH = 64
_MOST_THREADS = 4  # more only take Python's lock from each other: 16 are slower than one

T = TypeVar("T")


@dataclass(frozen=True)
class Pictures:
    """Images and label maps of one size."""

    images: Tensor  # (N, 3, S, S) uint8
    labels: Tensor  # (N, S, S) uint8
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and label maps, B at a time."""
        images, labels = torch.split(self.images, BATCH), torch.split(self.labels, BATCH)
        return zip(images, labels, strict=True)


def spread(count: int, limit: int) -> list[int]:
    """At most ``limit`` of the numbers below ``count``, evenly spread over them."""
    return [index * count // min(count, limit) for index in range(min(count, limit))]


def in_threads(make: Callable[[int], T], indices: Sequence[int]) -> list[T]:
    """``make`` of every index, in order; decoding and scaling leave Python's lock alone.

    Each works on one core: threads that bring threads of their own get in each other's way.
    """
    before = torch.get_num_threads()
    workers = min(_MOST_THREADS, os.cpu_count() or 1)
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(make, indices))
    finally:
        torch.set_num_threads(before)  # later threads take the number that was set last


def load_pictures(labels: DenseLabels, *, size: int, limit: int) -> Pictures:
    """At most ``limit`` images with their labels, spread evenly over the set."""

    def one(index: int) -> tuple[Tensor, Tensor]:
        image, numbers = labels.load(index)
        return scale(image, size), scale_labels(numbers, size)

    images, maps = zip(*in_threads(one, spread(len(labels), limit)), strict=True)
    return Pictures(torch.stack(images), torch.stack(maps), tuple(labels.class_names))


def load_images(source: ImageSource, indices: Sequence[int], *, size: int) -> Tensor:
    """Some images of a source, (N, 3, S, S) uint8."""
    return torch.stack(in_threads(lambda index: scale(read_image(source, index), size), [*indices]))


def read_image(source: ImageSource, index: int) -> Tensor:
    """One image of a source, uint8 (3, H, W); a figure must not depend on what was readable."""
    try:
        return decode(source.read(index))
    except (DecodeError, OSError) as error:
        raise UserError(
            f"{source.name(index)} cannot be probed: {error}. Repair or remove the file."
        ) from None


def scale(image: Tensor, size: int) -> Tensor:
    """An image (3, H, W) as uint8 (3, S, S)."""
    if image.shape[1:] == (size, size):
        return image
    return F.interpolate(image[None], (size, size), mode="bilinear", antialias=True)[0]


def scale_labels(labels: Tensor, size: int) -> Tensor:
    """A label map (H, W) as uint8 (S, S), without new classes between two others."""
    if labels.shape == (size, size):
        return labels
    numbers = F.interpolate(labels[None, None].float(), (size, size), mode="nearest-exact")
    return numbers[0, 0].byte()
