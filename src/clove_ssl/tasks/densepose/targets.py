"""What the DensePose branch learns from: labelled points and masks of persons.

A label lives in the frame of its person's box, so it needs no resizing with the image: x and y
run from 0 to 256 across the box, and so do the pixels of the mask. Points are packed one after
the other, with the person that each belongs to.

Dimensions: N persons of an image, L of them with labels, P points of them all, 256 x 256 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.tasks.rcnn.instances import DetectionBatch

LABEL_SIDE = 256
"""Units of a box in which points and masks are labelled."""


class SurfaceLabels(NamedTuple):
    """The labels of the persons of one image, or of all images of a batch."""

    persons: Tensor  # (L,) int64, rows of the objects, ascending
    masks: Tensor  # (L, 256, 256) bool
    has_mask: Tensor  # (L,) bool; without one the mask is empty and no target
    owners: Tensor  # (P,) int64, which of the L persons
    places: Tensor  # (P, 2) float32 x, y in 0..256 of the box
    parts: Tensor  # (P,) int64, 0 to 24
    surface: Tensor  # (P, 2) float32 U, V

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> SurfaceLabels:
        """The labels on ``device``."""
        return SurfaceLabels(*(each.to(device, non_blocking=non_blocking) for each in self))

    def pin_memory(self) -> SurfaceLabels:
        """The labels in page-locked memory."""
        return SurfaceLabels(*(each.pin_memory() for each in self))


@dataclass(frozen=True)
class DensePoseBatch(DetectionBatch):
    """Images with persons, some of which have DensePose labels."""

    labels: tuple[SurfaceLabels, ...] = ()  # of each image; empty at test time

    @classmethod
    def of(cls, batch: DetectionBatch, labels: Sequence[SurfaceLabels]) -> DensePoseBatch:
        """Add labels to a batch."""
        values = {field.name: getattr(batch, field.name) for field in fields(DetectionBatch)}
        return cls(**values, labels=tuple(labels))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> DensePoseBatch:
        """Return the batch on ``device``."""
        moved = super().to(device, non_blocking=non_blocking)
        return self.of(moved, [each.to(device, non_blocking=non_blocking) for each in self.labels])

    def pin_memory(self) -> DensePoseBatch:
        """Return the batch in page-locked memory."""
        return self.of(super().pin_memory(), [each.pin_memory() for each in self.labels])


def join_labels(labels: Sequence[SurfaceLabels], objects: Sequence[int]) -> SurfaceLabels:
    """The labels of all images, whose objects (and labelled persons) are counted through."""
    persons, owners = [], []
    first_object = first_person = 0
    for each, count in zip(labels, objects, strict=True):
        persons.append(each.persons + first_object)
        owners.append(each.owners + first_person)
        first_object, first_person = first_object + count, first_person + len(each.persons)
    return SurfaceLabels(
        persons=torch.cat(persons),
        masks=torch.cat([each.masks for each in labels]),
        has_mask=torch.cat([each.has_mask for each in labels]),
        owners=torch.cat(owners),
        places=torch.cat([each.places for each in labels]),
        parts=torch.cat([each.parts for each in labels]),
        surface=torch.cat([each.surface for each in labels]),
    )
