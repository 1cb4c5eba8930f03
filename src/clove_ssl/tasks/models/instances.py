"""What goes into a detector and what comes out: objects, detections, batches.

Boxes are x0, y0, x1, y1 in pixels. Targets live in the pixels of the resized image that the
detector sees; detections live in the pixels of the original image. Classes count from 0 to
K - 1; background has no object.

N objects of one image, P keypoints per object, B images, h and w of a resized image, H and W of
an original one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.classes)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ImageTargets:
        """Return the targets with every tensor on ``device``."""
        return ImageTargets(
            boxes=self.boxes.to(device, non_blocking=non_blocking),
            classes=self.classes.to(device, non_blocking=non_blocking),
            polygons=self.polygons,
            bitmaps=_moved(self.bitmaps, device, non_blocking=non_blocking),
            keypoints=_moved(self.keypoints, device, non_blocking=non_blocking),
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

    def to(self, device: torch.device | str) -> ImageDetections:
        """Return the detections with every tensor on ``device``."""
        return ImageDetections(
            boxes=self.boxes.to(device),
            scores=self.scores.to(device),
            classes=self.classes.to(device),
            masks=_moved(self.masks, device),
            keypoints=_moved(self.keypoints, device),
        )


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

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The height and width of each resized image."""
        return [(image.shape[-2], image.shape[-1]) for image in self.images]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> DetectionBatch:
        """Return the batch on ``device``; the keys stay on the host, where draws are seeded."""
        return DetectionBatch(
            images=tuple(image.to(device, non_blocking=non_blocking) for image in self.images),
            targets=tuple(
                objects.to(device, non_blocking=non_blocking) for objects in self.targets
            ),
            original_sizes=self.original_sizes,
            keys=self.keys,
        )

    def pin_memory(self) -> DetectionBatch:
        """Return the batch in page-locked memory, as data loaders ask for."""
        return DetectionBatch(
            images=tuple(image.pin_memory() for image in self.images),
            targets=tuple(_pinned(objects) for objects in self.targets),
            original_sizes=self.original_sizes,
            keys=self.keys,
        )


def _moved(
    tensor: Tensor | None, device: torch.device | str, *, non_blocking: bool = False
) -> Tensor | None:
    return None if tensor is None else tensor.to(device, non_blocking=non_blocking)


def _pinned(objects: ImageTargets) -> ImageTargets:
    return ImageTargets(
        boxes=objects.boxes.pin_memory(),
        classes=objects.classes.pin_memory(),
        polygons=objects.polygons,
        bitmaps=None if objects.bitmaps is None else objects.bitmaps.pin_memory(),
        keypoints=None if objects.keypoints is None else objects.keypoints.pin_memory(),
    )
