"""Labels and losses of the DensePose branch, as Detectron2's chart-based one computes them.

A label lives in the frame of its person's box, so it needs no resizing with the image: x and y
run from 0 to 256 across the box, and so do the pixels of the mask. Points are packed one after
the other, with the person that each belongs to.

Where a rule looks odd, it is that program's: U and V are sums over points, so they grow with the
number of regions, while mask and part are means; a target mask is read at the corners of pixels.
With several processes the means divide by their mean count, so a region weighs the same wherever
it lands.

Dimensions: R regions on labelled persons, L labelled persons, P labelled points, Q pairs of a
region and a point of its person, M x M pixels of a region's maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.collectives import mean_count
from clove_ssl.layers.transfers import send_like
from clove_ssl.tasks.densepose.branch import SurfaceMaps
from clove_ssl.tasks.densepose.labels import SIDE
from clove_ssl.tasks.rcnn.instances import DetectionBatch


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


class LossWeights(NamedTuple):
    """What the terms are multiplied by."""

    person: float = 5.0
    part: float = 1.0
    surface: float = 0.01


class RegionLabels(NamedTuple):
    """The labels of regions, in the pixels of their maps."""

    mask: Tensor  # (K, M, M) int64, 1 where the person is
    mask_regions: Tensor  # (K,) regions whose person has a mask
    regions: Tensor  # (Q,) region of every point
    x: Tensor  # (Q,) column of the map, not rounded
    y: Tensor  # (Q,)
    parts: Tensor  # (Q,)
    surface: Tensor  # (Q, 2) U, V


def region_labels(
    labels: SurfaceLabels,
    owners: Tensor,  # (R,) which of the L labelled persons a region shows
    *,
    boxes: Tensor,  # (R, 4)
    truth: Tensor,  # (R, 4) boxes of the persons
    side: int,
) -> RegionLabels:
    """Bring the labels of persons into the maps of their regions; points outside are dropped."""
    with_mask = torch.nonzero(labels.has_mask[owners]).squeeze(1)  # (K,)
    mask = sample_masks(
        labels.masks[owners[with_mask]], truth[with_mask], boxes[with_mask], side=side
    )
    # Several regions may show one person, and each has all of its points.
    region, point = torch.nonzero(owners[:, None] == labels.owners[None], as_tuple=True)  # (Q,)
    low, size = truth[region, :2], truth[region, 2:] - truth[region, :2]  # (Q, 2)
    place = low + labels.places[point] * size / SIDE - boxes[region, :2]  # (Q, 2)
    extent = boxes[region, 2:] - boxes[region, :2]  # (Q, 2)
    # A region may cover a part of the person only.
    inside = ((place >= 0) & (place < extent)).all(dim=1)  # (Q,)
    region, point = region[inside], point[inside]
    cell = place[inside] * side / extent[inside]  # (Q, 2)
    x, y = cell.unbind(1)
    return RegionLabels(
        mask.long(), with_mask, region, x, y, labels.parts[point], labels.surface[point]
    )


def densepose_losses(
    maps: SurfaceMaps, labels: RegionLabels, *, weights: LossWeights
) -> dict[str, Tensor]:
    """The four weighted terms; each is 0, with a gradient, where nothing is labelled."""
    counts = send_like([labels.mask.numel(), len(labels.parts)], labels.parts)
    divisors = mean_count(counts)
    divisors = torch.where(divisors > 0, divisors, 1.0)  # where it is 0, so are the sums
    # A sum of nothing is 0 and keeps the graph, where a mean would be NaN.
    person = F.cross_entropy(maps.person[labels.mask_regions], labels.mask, reduction="sum")
    logits = _at_points(maps.part, labels)  # (Q, 25)
    part = F.cross_entropy(logits, labels.parts, reduction="sum")
    on_body = torch.nonzero(labels.parts > 0).squeeze(1)
    channel = labels.parts[on_body][:, None]
    terms = {"loss_densepose_S": weights.person * person / divisors[0]}
    terms["loss_densepose_I"] = weights.part * part / divisors[1]
    for axis, (name, values) in enumerate((("U", maps.u), ("V", maps.v))):
        # U and V have a channel for each part; only that of the true part learns from a point.
        found = _at_points(values, labels)[on_body].gather(1, channel).squeeze(1)
        distance = F.smooth_l1_loss(found, labels.surface[on_body, axis], reduction="sum")
        terms[f"loss_densepose_{name}"] = weights.surface * distance
    return terms


def sample_masks(masks: Tensor, truth: Tensor, boxes: Tensor, *, side: int) -> Tensor:
    """Masks (K, 256, 256) of the boxes ``truth`` as seen in other boxes (K, 4): (K, M, M) bool."""
    step = torch.arange(side, device=boxes.device, dtype=boxes.dtype) / side  # (M,)
    size = truth[:, 2:] - truth[:, :2]  # (K, 2)
    low = 2 * (boxes[:, :2] - truth[:, :2]) / size - 1  # (K, 2) of -1 to 1 across ``truth``
    high = 2 * (boxes[:, 2:] - truth[:, :2]) / size - 1
    places = low[:, None] + step[:, None] * (high - low)[:, None]  # (K, M, 2)
    grid = torch.stack(
        [
            places[:, None, :, 0].expand(-1, side, side),
            places[:, :, None, 1].expand(-1, side, side),
        ],
        dim=-1,
    )  # (K, M, M, 2)
    # With corners aligned, -1 and 1 are the middles of the outermost pixels: Detectron2's choice.
    sampled = F.grid_sample(
        masks[:, None].to(boxes.dtype), grid, mode="nearest", align_corners=True
    )
    return sampled[:, 0] > 0


def _at_points(maps: Tensor, labels: RegionLabels) -> Tensor:
    """Bilinear values of maps (R, C, M, M) at the points: (Q, C)."""
    last = maps.shape[-1] - 1
    left, top = (each.floor().long().clamp(0, last) for each in (labels.x, labels.y))  # (Q,)
    right, bottom = (left + 1).clamp(max=last), (top + 1).clamp(max=last)
    # Beyond the middle of the last cell its value stays.
    across = (torch.minimum(labels.x, right.to(labels.x.dtype)) - left)[:, None]  # (Q, 1)
    down = (torch.minimum(labels.y, bottom.to(labels.y.dtype)) - top)[:, None]
    upper = torch.lerp(_cells(maps, labels, top, left), _cells(maps, labels, top, right), across)
    lower = torch.lerp(
        _cells(maps, labels, bottom, left), _cells(maps, labels, bottom, right), across
    )
    return torch.lerp(upper, lower, down)


def _cells(maps: Tensor, labels: RegionLabels, rows: Tensor, columns: Tensor) -> Tensor:
    return maps[labels.regions, :, rows, columns]  # (Q, C)
