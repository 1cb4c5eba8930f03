"""What the first stage of a training step is told, and what comes of it.

A recorded graph knows nothing but a row of tensors, so both are taken apart and put together again.

Dimensions: B images, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from clove_ssl.tasks.rcnn.objects import ObjectTable
from clove_ssl.tasks.rcnn.proposals.rpn import RPNLosses
from clove_ssl.tasks.rcnn.regions.targets import DrawnRegions


class FirstInputs(NamedTuple):
    """What the first stage of a training step is told."""

    pixels: Tensor  # (B, 3, H, W)
    starts: Tensor  # (2, B) int64, of the priorities of anchors and of regions
    borders: Tensor  # (B, 4) int64, largest coordinates of an image
    objects: ObjectTable

    def flat(self) -> list[Tensor]:
        """All tensors that there are."""
        return [*self[:3], *(column for column in self.objects if column is not None)]

    @classmethod
    def of_flat(cls, tensors: Sequence[Tensor], *, masks: bool, keypoints: bool) -> FirstInputs:
        """What :meth:`flat` took apart, given which of the optional columns there are."""
        pixels, starts, borders, *columns = tensors
        required, rest = columns[:4], iter(columns[4:])
        objects = ObjectTable(*required)._replace(
            outline_sizes=next(rest) if masks else None,
            keypoints=next(rest) if keypoints else None,
        )
        return cls(pixels, starts, borders, objects)


class FirstStage(NamedTuple):
    """What comes of it."""

    levels: list[Tensor]
    losses: RPNLosses
    drawn: DrawnRegions

    def flat(self) -> tuple[Tensor, ...]:
        """All tensors that there are, without the places where there are none."""
        drawn = [column for column in self.drawn if column is not None]
        return (*self.losses, *self.levels, *drawn)

    @classmethod
    def of_flat(cls, tensors: Sequence[Tensor], *, levels: int, keypoints: bool) -> FirstStage:
        """What :meth:`flat` took apart, given how many levels there are, and the optional ones."""
        losses, maps, columns = tensors[:2], tensors[2 : 2 + levels], tensors[2 + levels :]
        required, rest = columns[:6], iter(columns[6:])
        drawn = DrawnRegions(*required)._replace(
            visible=next(rest) if keypoints else None,
            levels=next(rest) if levels > 1 else None,
        )
        return cls(list(maps), RPNLosses(*losses), drawn)
