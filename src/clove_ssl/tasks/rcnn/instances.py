"""What goes into a detector and what comes out: objects, detections, batches.

Boxes are x0, y0, x1, y1 in pixels. Targets live in the pixels of the resized image that the
detector sees; detections live in the pixels of the original image. Classes count from 0 to
K - 1; background has no object.

N objects of one image, P keypoints per object, B images, h and w of a resized image, H and W of
an original one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clove_ssl.layers.transfers import map_tensors
from clove_ssl.tasks.labels.polygons import PackedOutlines, pack_outlines

# The outlines of one object: each polygon is x0, y0, x1, y1, ... of float64.
Outlines = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class ImageTargets:
    """The objects of one image, in the pixels of the resized image.

    Masks are either polygons, which stay on the host, or bitmaps where the annotation is a run
    length code; never both.
    """

    boxes: Tensor  # (N, 4) float32
    classes: Tensor  # (N,) int64
    polygons: tuple[Outlines, ...] | None = None
    bitmaps: Tensor | None = None  # (N, h, w) bool
    keypoints: Tensor | None = None  # (N, P, 3): x, y, visibility
    outlines: PackedOutlines | None = None  # the polygons as tensors, once they have travelled

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.classes)

    def prepared(self) -> ImageTargets:
        """Return the targets with their polygons as tensors, too."""
        if self.polygons is None or self.outlines is not None:
            return self
        return replace(self, outlines=pack_outlines(self.polygons))

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which :meth:`with_tensors` takes them."""
        alone = [self.boxes, self.classes, self.bitmaps, self.keypoints]
        return [*(each for each in alone if each is not None), *(self.outlines or ())]

    def with_tensors(self, tensors: Iterator[Tensor]) -> ImageTargets:
        """Return the targets with other tensors in the place of their own."""
        return ImageTargets(  # not by ``replace``, which takes nearly twice as long
            boxes=next(tensors),
            classes=next(tensors),
            polygons=self.polygons,
            bitmaps=None if self.bitmaps is None else next(tensors),
            keypoints=None if self.keypoints is None else next(tensors),
            outlines=None if self.outlines is None else PackedOutlines(*islice(tensors, 4)),
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ImageTargets:
        """Return the targets with every tensor on ``device``."""
        return self.with_tensors(
            each.to(device, non_blocking=non_blocking) for each in self.tensors()
        )


@dataclass(frozen=True)
class ImageDetections:
    """What was found in one image, in the pixels of the original image, best score first."""

    boxes: Tensor  # (N, 4) float32
    scores: Tensor  # (N,) float32
    classes: Tensor  # (N,) int64
    masks: Tensor | None = None  # (N, H, W) bool
    keypoints: Tensor | None = None  # (N, P, 3): x, y, score

    def __len__(self) -> int:
        """Return the number of detections."""
        return len(self.scores)

    def to(self, device: torch.device | str) -> Self:
        """Return the detections with every tensor on ``device``."""
        return map_tensors(self, lambda each: each.to(device))


@dataclass(frozen=True)
class DetectionBatch:
    """Some images of different sizes with their objects.

    ``keys`` holds the position of each image in the training stream. Everything a detector
    draws at random for an image follows from the seed, the step and that key, so the result
    depends neither on the number of processes nor on the order within the batch.
    """

    images: tuple[Tensor, ...]  # each (3, h, w) uint8 RGB
    targets: tuple[ImageTargets, ...]  # empty at test time
    original_sizes: tuple[tuple[int, int], ...]  # (H, W) of each image before resizing
    keys: Tensor  # (B,) int64
    packed: PackedTensors | None = None  # what all other tensors but the keys are views of

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The height and width of each resized image."""
        return [(image.shape[-2], image.shape[-1]) for image in self.images]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> DetectionBatch:
        """Return the batch on ``device``; the keys stay on the host, where draws are seeded."""
        if self.packed is not None:
            return self._with_packed(self.packed.to(device, non_blocking=non_blocking))
        moved = (each.to(device, non_blocking=non_blocking) for each in self._tensors())
        return self._with_tensors(moved)

    def pin_memory(self) -> DetectionBatch:
        """Return the batch in one block of page-locked memory, as data loaders ask for."""
        ready = self._prepared()
        return ready._with_packed((ready.packed or pack(ready._tensors())).pin_memory())

    def __getstate__(self) -> dict[str, Any]:
        """One block instead of many tensors, for the way from a worker."""
        ready = self._prepared()
        packed = ready.packed or pack(ready._tensors())
        empty = ready._with_tensors(torch.empty(0) for _ in packed.views)
        return vars(self) | {
            "images": empty.images,
            "targets": empty.targets,
            "packed": packed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the tensors in the block again."""
        vars(self).update(state)
        vars(self).update(vars(self._with_packed(state["packed"])))

    def _prepared(self) -> DetectionBatch:
        if self.packed is not None:
            return self
        return self._base(targets=tuple(objects.prepared() for objects in self.targets))

    def _tensors(self) -> list[Tensor]:
        return [*self.images, *(each for objects in self.targets for each in objects.tensors())]

    def _with_tensors(
        self, tensors: Iterator[Tensor], packed: PackedTensors | None = None
    ) -> DetectionBatch:
        images = tuple(islice(tensors, len(self.images)))
        targets = tuple(objects.with_tensors(tensors) for objects in self.targets)
        return self._base(images=images, targets=targets, packed=packed)

    def _with_packed(self, packed: PackedTensors) -> DetectionBatch:
        return self._with_tensors(iter(packed.tensors()), packed)

    def _base(self, **changes: Any) -> DetectionBatch:
        """This part of the batch with some fields changed; subclasses add theirs."""
        own = {field.name: getattr(self, field.name) for field in fields(DetectionBatch)}
        return DetectionBatch(**own | changes)


_ALIGNMENT = 16  # bytes, enough for all types


class _View(NamedTuple):
    """Where a tensor lies in a block."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int  # in numbers of its type
    dtype: torch.dtype


@dataclass(frozen=True)
class PackedTensors:
    """Some tensors, one behind the other."""

    block: Tensor  # (bytes,) uint8
    views: tuple[_View, ...]

    def tensors(self) -> list[Tensor]:
        """The tensors, as views of the block; one operation for each, as there may be hundreds."""
        whole = {dtype: self._as(dtype) for dtype in {view.dtype for view in self.views}}
        # A block that begins behind the start of its memory: places are counted from there.
        first = {dtype: each.storage_offset() for dtype, each in whole.items()}
        return [
            torch.as_strided(whole[dtype], shape, strides, first[dtype] + start)
            for shape, strides, start, dtype in self.views
        ]

    def _as(self, dtype: torch.dtype) -> Tensor:
        """The block as numbers of a type; its last bytes may belong to a smaller one."""
        return self.block[: len(self.block) // dtype.itemsize * dtype.itemsize].view(dtype)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedTensors:
        """The tensors on ``device``."""
        return PackedTensors(self.block.to(device, non_blocking=non_blocking), self.views)

    def pin_memory(self) -> PackedTensors:
        """The tensors in page-locked memory."""
        return PackedTensors(self.block.pin_memory(), self.views)


def pack(tensors: Sequence[Tensor]) -> PackedTensors:
    """Copy tensors of the host into one block."""
    *starts, size = _starts([*(each.numel() * each.dtype.itemsize for each in tensors), 0])
    views = tuple(
        _View(tuple(each.shape), _strides(each), start // each.dtype.itemsize, each.dtype)
        for each, start in zip(tensors, starts, strict=True)
    )
    packed = PackedTensors(torch.empty(size, dtype=torch.uint8), views)
    for place, tensor in zip(packed.tensors(), tensors, strict=True):
        place.copy_(tensor)
    return packed


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Distances of neighbours on every axis, in the order in which the tensor lies in memory.

    Images are decoded with channels side by side; turning them round would cost a worker more than
    mirroring them.
    """
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    strides, distance = [0] * tensor.ndim, 1
    for axis in reversed(order):
        strides[axis] = distance
        distance *= tensor.shape[axis]
    return tuple(strides)


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each tensor begins."""
    starts, end = [], 0
    for length in lengths:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + length
    return starts
