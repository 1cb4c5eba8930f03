"""DensePose R-CNN: a Faster R-CNN for persons with a branch for their surface.

What scores are made from has 8 bits per value: part 0 where no person is, U and V in steps of
1/255, for the pixels of a box whose sides are cut to whole numbers.

Dimensions: M x M pixels of a region's maps, h x w pixels of a box,
B images, R regions on labelled persons, G objects of the batch, D detections.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.detection import DetectorConfig
from clove_ssl.errors import UserError
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.tasks.densepose.branch import DensePoseHead, SurfaceMaps
from clove_ssl.tasks.densepose.config import DensePoseHeadConfig
from clove_ssl.tasks.densepose.losses import (
    DensePoseBatch,
    LossWeights,
    SurfaceLabels,
    densepose_losses,
    join_labels,
    region_labels,
)
from clove_ssl.tasks.densepose.scores import DETECTIONS
from clove_ssl.tasks.labels.polygons import PackedOutlines
from clove_ssl.tasks.rcnn.boxes import box_areas, clip_boxes, has_area
from clove_ssl.tasks.rcnn.detector import Detector, Found, in_original_pixels
from clove_ssl.tasks.rcnn.draws import Priorities, RandomPriorities
from clove_ssl.tasks.rcnn.instances import DetectionBatch, ImageDetections
from clove_ssl.tasks.rcnn.pixels import resize_boxes
from clove_ssl.tasks.rcnn.regions.pooling import batched_regions
from clove_ssl.tasks.rcnn.regions.targets import TrainingRegions, object_boxes
from clove_ssl.tasks.training_parts import freeze_norms, freeze_stages


class DensePoseDetector(Detector):
    """A detector of persons and of their surface.

    Args:
        config: The detector without the branch.
        head: The branch.
        backbone: The network; the detector takes it over.
        priorities: How anchors and regions are chosen for the losses.
    """

    def __init__(
        self,
        config: DetectorConfig,
        head: DensePoseHeadConfig,
        backbone: Backbone,
        *,
        priorities: Priorities,
    ) -> None:
        super().__init__(config, backbone, classes=1, keypoints=0, priorities=priorities)
        self.surface_config = head
        self.surface_head = DensePoseHead(head, self.features.level_channels)

    def region_losses(
        self,
        levels: Sequence[Tensor],
        regions: TrainingRegions,
        batch: DetectionBatch,
        outlines: PackedOutlines | None = None,
    ) -> dict[str, Tensor]:
        """The losses of the second stage, with those of the surface."""
        assert isinstance(batch, DensePoseBatch)
        losses = super().region_losses(levels, regions, batch, outlines)
        return losses | self.surface_losses(levels, regions, batch)

    def surface_losses(
        self, levels: Sequence[Tensor], regions: TrainingRegions, batch: DensePoseBatch
    ) -> dict[str, Tensor]:
        """The losses of the branch; without a labelled person they are 0, with a gradient."""
        config = self.surface_config
        labels = join_labels(batch.labels, [len(objects) for objects in batch.targets])
        chosen = choose_regions(regions, labels, batch, overlap_above=config.overlap_above)
        maps = self._surface_maps(levels, chosen.regions.regions)
        targets = region_labels(
            labels,
            chosen.owners,
            boxes=chosen.regions.boxes,
            truth=chosen.truth,
            side=maps.part.shape[-1],
        )
        surface = config.surface_weight * config.surface_images / len(batch)
        weights = LossWeights(config.person_weight, config.part_weight, surface)
        return densepose_losses(maps, targets, weights=weights)

    @torch.no_grad()
    def detect(self, batch: DetectionBatch) -> list[DensePoseDetections]:  # type: ignore[override]
        """The persons in the images, in the pixels of the originals."""
        levels = self.maps(batch)
        found = [
            _with_area(each, seen=seen, original=original)
            for each, seen, original in zip(
                self.find_in(levels, batch.sizes), batch.sizes, batch.original_sizes, strict=True
            )
        ]
        best = [each.boxes[:DETECTIONS] for each in found]  # scores look at no others
        maps = self._surface_maps(levels, batched_regions(best))
        counts = [len(boxes) for boxes in best]
        per_image = zip(*(torch.split(each, counts) for each in maps), strict=True)
        return [
            _in_original_pixels(each, SurfaceMaps(*own), seen=seen, original=original)
            for each, own, seen, original in zip(
                found, per_image, batch.sizes, batch.original_sizes, strict=True
            )
        ]

    def _surface_maps(self, levels: Sequence[Tensor], regions: Tensor) -> SurfaceMaps:
        # The coarsest map is for proposals only.
        maps: SurfaceMaps = self.surface_head(levels[:-1], regions)
        return SurfaceMaps(*(at_least_fp32(each) for each in maps))


class ChosenRegions(NamedTuple):
    """Regions that the branch learns from."""

    regions: TrainingRegions  # R
    owners: Tensor  # (R,) which of the labelled persons they show
    truth: Tensor  # (R, 4) boxes of these persons


def choose_regions(
    regions: TrainingRegions,
    labels: SurfaceLabels,
    batch: DetectionBatch,
    *,
    overlap_above: float,
) -> ChosenRegions:
    """Regions on labelled persons that overlap their boxes enough."""
    owner = labels.persons.new_full((sum(map(len, batch.targets)) + 1,), -1)  # (G + 1,)
    owner[labels.persons] = torch.arange(len(labels.persons), device=owner.device)
    truth = object_boxes(batch.targets, regions)
    labelled = (regions.classes == 0) & (owner[regions.objects] >= 0)
    enough = _overlaps(regions.boxes, truth) > overlap_above
    rows = torch.nonzero(labelled & enough).squeeze(1)  # (R,)
    chosen = regions.take(rows)
    return ChosenRegions(chosen, owner[chosen.objects], truth[rows])


def build_densepose_detector(
    config: DetectorConfig, head: DensePoseHeadConfig, backbone: Backbone, *, seed: int = 0
) -> DensePoseDetector:
    """Build a detector with fresh heads around a backbone, and freeze what the config says."""
    if config.kind != "fpn" or config.masks or config.keypoints:
        raise UserError(
            f"task.detector is a {config.kind} detector with masks={config.masks} and "
            f"keypoints={config.keypoints}, but DensePose needs a pyramid and no other head. Give "
            "kind fpn and leave masks and keypoints out."
        )
    backbone.requires_grad_(True)
    if config.backbone_norm == "frozen":
        freeze_norms(backbone.body)
    freeze_stages(backbone, config.frozen_stages)
    return DensePoseDetector(config, head, backbone, priorities=RandomPriorities(seed))


def _with_area(found: Found, *, seen: tuple[int, int], original: tuple[int, int]) -> Found:
    """The detections of which something is left in the original image."""
    boxes = clip_boxes(resize_boxes(found.boxes, seen, original), original)  # (D, 4)
    kept = has_area(boxes)
    return Found(found.boxes[kept], found.scores[kept], found.classes[kept])


def _in_original_pixels(
    found: Found, maps: SurfaceMaps, *, seen: tuple[int, int], original: tuple[int, int]
) -> DensePoseDetections:
    """Boxes in the original image, and the surface of the first of them."""
    persons = in_original_pixels(found, seen=seen, original=original)
    surfaces = read_surfaces(maps, persons.boxes[: len(maps.part)])
    return DensePoseDetections(
        persons.boxes, persons.scores, persons.classes, surfaces=tuple(surfaces)
    )


def _overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of boxes (N, 4), row by row: (N,)."""
    low, high = (
        torch.maximum(first[:, :2], second[:, :2]),
        torch.minimum(first[:, 2:], second[:, 2:]),
    )
    shared = (high - low).clamp(min=0).prod(dim=1)
    return shared / (box_areas(first) + box_areas(second) - shared).clamp(min=1e-12)


LEVELS = 255
"""Steps of U and V."""


@dataclass(frozen=True)
class DensePoseDetections(ImageDetections):
    """Persons of one image; the best of them with their surface."""

    surfaces: tuple[Tensor, ...] = ()  # of the first detections: (3, h, w) uint8 part, U, V


@torch.no_grad()
def read_surfaces(maps: SurfaceMaps, boxes: Tensor) -> Iterator[Tensor]:
    """Part, U and V in the pixels of boxes (D, 4), one after the other: (3, h, w) uint8."""
    # In float64, as records have them: a side must be cut to the same whole number there.
    corners = boxes.double()
    sides = (corners[:, 2:] - corners[:, :2]).long().clamp(min=1).tolist()  # D x (w, h)
    for number, (width, height) in enumerate(sides):
        own = SurfaceMaps(*(each[number : number + 1] for each in maps))
        yield _read_surface(own, (height, width))


def _read_surface(maps: SurfaceMaps, size: tuple[int, int]) -> Tensor:
    """Maps (1, C, M, M) of one region, enlarged to a box."""
    person = _resized(maps.person, size).argmax(dim=0)  # (h, w)
    part = _resized(maps.part, size).argmax(dim=0) * (person > 0)  # (h, w)
    on_body = (part > 0).float()
    rows = [part.to(torch.uint8)]
    for values in (maps.u, maps.v):
        own = _resized(values, size).gather(0, part[None])[0]  # (h, w)
        # Detectron2 cuts to whole steps rather than rounding to them.
        rows.append((own * LEVELS * on_body).clamp(0, LEVELS).to(torch.uint8))
    return torch.stack(rows)


def _resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(1, C, M, M) -> (C, h, w)."""
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)[0]
