"""The objects of a batch as tables, whose lengths may be larger than there are objects.

A graph is recorded for one shape, but every batch has another number of objects. So they lie behind
each other in tables with rows of zeros at the end, and whole numbers say which rows belong to which
image. How many rows of zeros there are changes no result: no box overlaps them.

Dimensions: B images, G objects of the batch, T > G rows of a table, W at least as many as an image
has objects, P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clove_ssl.layers.transfers import send_tables

ROOM_PER_IMAGE = 16
"""Rows of a roomy table for each image: twice as many as COCO has objects on average, so that
nearly all batches have tables of one length."""
ROOM_OF_ONE = 64
"""Objects that one image of a roomy table may have; few images of COCO have more."""

Whole = npt.NDArray[np.int64]


class TableShape(NamedTuple):
    """How large the tables of a batch are."""

    rows: int  # T
    width: int  # W


class ObjectTable(NamedTuple):
    """Objects of all images, those of the first image first, then rows of zeros."""

    boxes: Tensor  # (T, 4)
    owners: Tensor  # (2, T) int64, the image of a row, and its place among those of that image
    images: Tensor  # (B, 2 + W) int64, objects of an image, those before it, and where they are
    classes: Tensor | None = None  # (T,)
    outline_sizes: Tensor | None = None  # (2, T) corners and polygons
    keypoints: Tensor | None = None  # (T, P, 3)

    @property
    def counts(self) -> Tensor:
        """The number of objects of each image: (B,)."""
        return self.images[:, 0]

    @property
    def firsts(self) -> Tensor:
        """The number of objects before each image: (B,)."""
        return self.images[:, 1]

    def by_image(self, column: Tensor) -> Tensor:
        """A column (T, ...) image by image, filled up with zeros: (B, W, ...)."""
        return column[self.images[:, 2:]]


def tight_shape(counts: Sequence[int]) -> TableShape:
    """The smallest tables for images with so many objects."""
    # One row of zeros at least: background of images without objects points to it.
    return TableShape(sum(counts) + 1, max([*counts, 1]))


def roomy_shape(counts: Sequence[int]) -> TableShape:
    """Tables that other batches fit into as well, since a graph is recorded for each shape."""
    rows, width = tight_shape(counts)
    return TableShape(
        _power_of_two(max(rows, ROOM_PER_IMAGE * len(counts), ROOM_OF_ONE)),
        _power_of_two(max(width, ROOM_OF_ONE)),
    )


def whole_numbers(counts: Sequence[int], shape: TableShape) -> tuple[Whole, Whole]:
    """The owners (2, T) and the images (B, 2 + W) of a table."""
    objects = np.array(counts, np.int64)  # (B,)
    firsts = objects.cumsum() - objects  # (B,)
    place = np.arange(shape.width)
    places = np.where(place < objects[:, None], firsts[:, None] + place, shape.rows - 1)  # (B, W)
    owners = np.zeros((2, shape.rows), np.int64)
    owners[0, : objects.sum()] = np.repeat(np.arange(len(objects)), objects)
    owners[1, : objects.sum()] = np.arange(objects.sum()) - np.repeat(firsts, objects)
    return owners, np.concatenate([objects[:, None], firsts[:, None], places], axis=1)


def join_rows(parts: Sequence[Tensor], rows: int, *, dim: int = 0) -> Tensor:
    """Tensors (..., N_b, ...) behind each other, and zeros up to ``rows`` in all."""
    shape = list(parts[0].shape)
    shape[dim] = rows - sum(part.shape[dim] for part in parts)
    return torch.cat([*parts, parts[0].new_zeros(shape)], dim=dim)


def table_boxes(boxes: Sequence[Tensor]) -> ObjectTable:
    """Boxes (G_b, 4) of B images alone."""
    counts = [len(each) for each in boxes]
    shape = tight_shape(counts)
    numbers = send_tables(whole_numbers(counts, shape), boxes[0].device)
    return ObjectTable(join_rows(boxes, shape.rows), *numbers)


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
