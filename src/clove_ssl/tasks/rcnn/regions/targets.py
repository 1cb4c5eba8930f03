"""The regions that a training step looks at, over all images, and what they should become.

The objects of a batch are counted through: those of the first image, then those of the second.

Dimensions: B images, G objects of the batch, R regions, K classes, M x M pixels of a mask,
P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.ops import roi_align

from clove_ssl.config.detection import BoxHeadConfig
from clove_ssl.layers.transfers import send
from clove_ssl.tasks.labels.polygons import (
    PackedOutlines,
    join_outlines,
    masks_in_boxes,
    pack_outlines,
)
from clove_ssl.tasks.rcnn.instances import ImageTargets
from clove_ssl.tasks.rcnn.proposals.choose import Proposals, append_ground_truth
from clove_ssl.tasks.rcnn.regions.roi_heads import LabelledRegions, label_regions, sample_regions


class TrainingRegions(NamedTuple):
    """Sampled regions of all images."""

    regions: Tensor  # (R, 5) image, x1, y1, x2, y2
    classes: Tensor  # (R,) K = background
    objects: Tensor  # (R,) rows of the batch's objects; anything for background

    @property
    def boxes(self) -> Tensor:
        """(R, 4)."""
        return self.regions[:, 1:]

    def take(self, chosen: Tensor) -> TrainingRegions:
        """The chosen rows."""
        return TrainingRegions(*(column[chosen] for column in self))


def draw_regions(
    proposals: Sequence[Proposals],
    targets: Sequence[ImageTargets],
    priority: Tensor,  # (B, at least as many as an image has proposals and objects)
    *,
    config: BoxHeadConfig,
    num_classes: int,
) -> TrainingRegions:
    """Sample regions of every image, the ground truth among them."""
    candidates = [
        append_ground_truth(proposed, objects.boxes).boxes
        for proposed, objects in zip(proposals, targets, strict=True)
    ]
    labelled = _label_all(candidates, targets, num_classes=num_classes)  # (B, N)
    sampled = sample_regions(
        labelled,
        priority[:, : labelled.classes.shape[1]],
        num_classes=num_classes,
        count=config.regions_per_image,
        foreground_share=config.foreground_share,
    )  # (B, k)
    image, place = torch.nonzero(sampled.valid, as_tuple=True)  # (R,)
    row = sampled.rows[image, place]  # (R,)
    boxes, classes, objects = (column[image, row] for column in labelled)
    return TrainingRegions(
        torch.cat([image[:, None].to(boxes.dtype), boxes], dim=1), classes, objects
    )


def _label_all(
    candidates: Sequence[Tensor],  # B x (N_b, 4)
    targets: Sequence[ImageTargets],
    *,
    num_classes: int,
) -> LabelledRegions:
    """The labels of the regions of all images, whose objects are counted through: (B, N).

    Images with fewer regions are filled up with some of the class -1.
    """
    boxes = pad_sequence(list(candidates), batch_first=True)  # (B, N, 4)
    labelled = label_regions(
        boxes,
        pad_sequence([objects.boxes for objects in targets], batch_first=True),
        pad_sequence([objects.classes for objects in targets], batch_first=True),
        num_classes=num_classes,
    )
    counts = [len(each) for each in candidates]
    table = send([counts, _first_objects(targets)], boxes.device, dtype=torch.int64)  # (2, B)
    beyond = torch.arange(boxes.shape[1], device=boxes.device) >= table[0, :, None]  # (B, N)
    # Background may point at a row that only fills up its image.
    matched = labelled.matched.where(labelled.classes != num_classes, 0)
    return LabelledRegions(
        boxes, labelled.classes.masked_fill(beyond, -1), matched + table[1, :, None]
    )


def object_boxes(targets: Sequence[ImageTargets], chosen: TrainingRegions) -> Tensor:
    """The boxes of the objects of some regions; 0 where an image has none: (R, 4)."""
    boxes = torch.cat([objects.boxes for objects in targets])  # (G, 4)
    # Background of an image without objects may point one place behind the last object.
    return torch.cat([boxes, boxes.new_zeros(1, 4)])[chosen.objects]


def object_keypoints(targets: Sequence[ImageTargets], chosen: TrainingRegions) -> Tensor:
    """The keypoints of the objects of some foreground regions: (R, P, 3)."""
    keypoints = [objects.keypoints for objects in targets]
    known = [each for each in keypoints if each is not None]
    if len(known) != len(keypoints):
        raise ValueError("a keypoint detector is trained on images whose objects have keypoints")
    return torch.cat(known)[chosen.objects]


def object_masks(targets: Sequence[ImageTargets], chosen: TrainingRegions, *, size: int) -> Tensor:
    """The masks of the objects of some foreground regions, in their boxes: (R, M, M) bool."""
    outlines = join_outlines([_outlines(objects) for objects in targets])
    masks = masks_in_boxes(outlines, chosen.objects, chosen.boxes, size=size)
    for image, (objects, start) in enumerate(zip(targets, _first_objects(targets), strict=True)):
        if objects.bitmaps is not None:
            here = torch.nonzero(chosen.regions[:, 0] == image).squeeze(1)
            part = chosen.take(here)
            masks[here] = _crop(objects.bitmaps, part.objects - start, part.boxes, size=size)
    return masks


def _first_objects(targets: Sequence[ImageTargets]) -> list[int]:
    """The number of objects before each image."""
    starts = [0]
    for objects in targets:
        starts.append(starts[-1] + len(objects))
    return starts[:-1]


def _outlines(objects: ImageTargets) -> PackedOutlines:
    """The outlines of the objects of an image; none where they have bitmaps."""
    if objects.outlines is not None:
        return objects.outlines
    if objects.polygons is None and objects.bitmaps is None:
        raise ValueError("a mask detector is trained on images whose objects have masks")
    polygons = [()] * len(objects) if objects.polygons is None else objects.polygons
    return pack_outlines(polygons).to(objects.boxes.device)


def _crop(bitmaps: Tensor, rows: Tensor, boxes: Tensor, *, size: int) -> Tensor:
    """Bitmaps (N, h, w) in boxes (R, 4), at least half covered pixels: (R, size, size) bool."""
    regions = torch.cat([rows[:, None].to(boxes.dtype), boxes], dim=1)  # (R, 5)
    soft: Tensor = roi_align(
        bitmaps[:, None].to(boxes.dtype), regions, output_size=(size, size), aligned=True
    )
    return soft[:, 0] >= 0.5
