"""The objects of one image as arrays, and as the targets of a detector.

Annotations are Python tuples, a million of which no fork can share. So a dataset is packed into
one block of bytes that all workers read, and an image's objects are unpacked when it is asked for.

Dimensions: N objects, P keypoints.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from clove_ssl.tasks.labels.polygons import fill_polygons
from clove_ssl.tasks.labels.rle import RLE, decode_mask
from clove_ssl.tasks.labels.samples import PIXEL_MIDDLE, Annotation, Polygons, Sample
from clove_ssl.tasks.loading.geometry import Bits, Floats, Placement
from clove_ssl.tasks.loading.selection import Labels
from clove_ssl.tasks.rcnn.instances import ImageTargets

_LEAST_SIDE = 1e-5  # pixels; what is left of a box that lies outside the image

T = TypeVar("T")

Outline = tuple[Floats, ...]  # the polygons of one object


@dataclass(frozen=True)
class Objects:
    """An image and its objects, in the pixels of the file."""

    image: Path
    size: tuple[int, int]  # H, W
    boxes: Floats  # (N, 4)
    classes: npt.NDArray[np.int64]  # (N,)
    masks: tuple[Outline | RLE, ...] | None
    keypoints: Floats | None  # (N, P, 3)


class Packed(Sequence[T]):
    """What is known about many images, in one block of memory."""

    def __init__(self, values: Iterable[T]) -> None:
        packed = [pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL) for value in values]
        self._block = b"".join(packed)
        self._ends = np.cumsum([0, *map(len, packed)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> T:  # type: ignore[override]
        start, end = self._ends[index], self._ends[index + 1]
        value: T = pickle.loads(memoryview(self._block)[start:end])
        return value


class PackedObjects(Packed[Objects]):
    """The objects of many images."""

    def __init__(self, samples: Sequence[Sample], labels: Labels, *, keypoints: int = 0) -> None:
        super().__init__(_gather(sample, labels, keypoints) for sample in samples)


def make_targets(
    objects: Objects, placement: Placement, *, mirror_order: Sequence[int] = ()
) -> ImageTargets:
    """The targets in the resized image; objects of which nothing is left there go."""
    boxes = placement.boxes(objects.boxes).astype(np.float32)  # (N, 4)
    kept = (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=np.inf) > _LEAST_SIDE  # (N,)
    masks = None if objects.masks is None else _place_masks(objects.masks, placement)
    if isinstance(masks, np.ndarray):
        kept &= masks.any(axis=(1, 2))
    keypoints = None
    if objects.keypoints is not None:
        order = np.asarray(mirror_order, np.int64)
        keypoints = _tensor(placement.keypoints(objects.keypoints, order)[kept])
    polygons = bitmaps = None
    if isinstance(masks, np.ndarray):
        bitmaps = torch.from_numpy(masks[kept])
    elif masks is not None:
        polygons = tuple(outline for outline, keep in zip(masks, kept, strict=True) if keep)
    return ImageTargets(
        boxes=torch.from_numpy(boxes[kept]),
        classes=torch.from_numpy(objects.classes[kept]),
        polygons=polygons,
        bitmaps=bitmaps,
        keypoints=keypoints,
    )


def _tensor(values: Floats) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _place_masks(
    masks: tuple[Outline | RLE, ...], placement: Placement
) -> tuple[Outline, ...] | Bits:
    """Polygons where all objects have them, else bitmaps (N, h, w)."""
    placed = [
        placement.mask(decode_mask(mask))
        if isinstance(mask, RLE)
        else tuple(placement.polygon(outline) for outline in mask)
        for mask in masks
    ]
    outlines = tuple(mask for mask in placed if isinstance(mask, tuple))
    if len(outlines) == len(placed):
        return outlines
    height, width = placement.new
    return np.stack(
        [
            mask
            if isinstance(mask, np.ndarray)
            else fill_polygons(mask, height=height, width=width)
            for mask in placed
        ]
    )


def _gather(sample: Sample, labels: Labels, keypoints: int) -> Objects:
    things = sample.annotations
    boxes = [thing.target_box or thing.box for thing in things]
    return Objects(
        image=sample.image,
        size=(sample.height, sample.width),
        boxes=np.array(boxes, np.float64).reshape(-1, 4),
        classes=np.array([thing.category for thing in things], np.int64),
        masks=tuple(_mask(thing.mask) for thing in things) if labels == "masks" else None,
        keypoints=_keypoints(things, keypoints) if labels == "keypoints" else None,
    )


def _mask(mask: Polygons | RLE | None) -> Outline | RLE:
    if isinstance(mask, RLE):
        return mask
    return tuple(np.array(polygon, np.float64) for polygon in mask or ())


def _keypoints(things: Sequence[Annotation], count: int) -> Floats:
    """Labelled points in the middle of their pixels; zeros for objects without any: (N, P, 3)."""
    points = np.zeros((len(things), count, 3))
    for row, thing in zip(points, things, strict=True):
        if thing.keypoints:
            row[:] = thing.keypoints
    points[..., :2] += PIXEL_MIDDLE * (points[..., 2:] > 0)
    return points
