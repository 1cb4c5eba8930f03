"""The losses of the second stage, over the regions of all images at once.

Every sum is divided by a count of the whole batch: all regions for boxes, those on objects for
masks, visible keypoints for keypoints. With several processes it is their mean count.

Dimensions: R regions, F of them on objects, V of those with a visible keypoint, C channels,
S x S cells, K classes, P keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.layers.collectives import mean_count
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.layers.normalization import SynchronizedBatchNorm2d
from clove_ssl.tasks.labels.polygons import PackedOutlines
from clove_ssl.tasks.rcnn.instances import ImageTargets
from clove_ssl.tasks.rcnn.regions.keypoints import (
    KeypointTargets,
    keypoint_loss,
    keypoint_targets,
)
from clove_ssl.tasks.rcnn.regions.masks import mask_loss
from clove_ssl.tasks.rcnn.regions.targets import (
    ObjectMasks,
    RegionRows,
    TrainingRegions,
    object_keypoints,
    outlines_of,
    rows_of,
)


@dataclass(frozen=True)
class RegionTask:
    """Which regions the heads work on, and what the losses are divided by."""

    foreground: Tensor  # (F,) rows of the regions
    on_objects: TrainingRegions  # F
    masks: ObjectMasks | None  # (F, M, M)
    with_keypoints: TrainingRegions | None  # V
    keypoints: KeypointTargets | None  # (V, P)
    counts: Tensor  # (3,) R, F and visible keypoints, the mean over processes
    divisors: Tensor  # (3,) what the losses of boxes, masks and keypoints are divided by


def plan_losses(
    regions: TrainingRegions,
    objects: Sequence[ImageTargets],
    *,
    num_classes: int,
    mask_side: int | None,
    keypoints: bool,
    outlines: PackedOutlines | None = None,
) -> RegionTask:
    """Find the regions that the mask and the keypoint head learn from, and their targets.

    The ``outlines`` of the objects may be at hand already.
    """
    rows = rows_of(
        regions,
        objects,
        num_classes=num_classes,
        masks=mask_side is not None,
        keypoints=keypoints,
    )
    on_objects = regions.take(rows.foreground)
    shown, cells = _with_keypoints(regions, rows, objects) if keypoints else (None, None)
    visible = regions.classes.new_zeros(()) if cells is None else cells.valid.sum()
    masks = None
    if mask_side is not None:
        outlines = outlines_of(objects) if outlines is None else outlines
        masks = ObjectMasks(objects, outlines, on_objects, rows, size=mask_side)
    counts = mean_count(torch.cat([rows.counts, visible[None]]))  # (3,)
    return RegionTask(
        foreground=rows.foreground,
        on_objects=on_objects,
        masks=masks,
        with_keypoints=shown,
        keypoints=cells,
        counts=counts,
        divisors=torch.where(counts > 0, counts, 1.0),  # where it is 0, so are the sums
    )


def mask_term(head: nn.Module, maps: Tensor, task: RegionTask) -> Tensor:
    """The loss of the mask head on the maps (F, C, S, S) of regions that show objects."""
    # Without regions a batch norm would make its statistics NaN, unless it shares them with a
    # process that has some and waits for this one.
    if len(maps) == 0 and (not _shares_statistics(head) or not bool(task.counts[1] > 0)):
        return idle_loss(head)
    logits = at_least_fp32(head(maps, task.on_objects.classes))  # (F, M, M)
    assert task.masks is not None
    return mask_loss(logits, task.masks.read(), normalizer=task.divisors[1])


def keypoint_term(head: nn.Module, maps: Tensor, task: RegionTask) -> Tensor:
    """The loss of the keypoint head on the maps (V, C, S, S) of regions with keypoints."""
    assert task.keypoints is not None
    return keypoint_loss(at_least_fp32(head(maps)), task.keypoints, normalizer=task.divisors[2])


def idle_loss(head: nn.Module) -> Tensor:
    """Zero, with a gradient of zero for all parameters: processes expect one for each."""
    return torch.stack([parameter.sum() for parameter in head.parameters()]).sum() * 0


def _with_keypoints(
    regions: TrainingRegions, rows: RegionRows, objects: Sequence[ImageTargets]
) -> tuple[TrainingRegions, KeypointTargets]:
    assert rows.visible is not None
    shown = regions.take(rows.visible)  # V
    return shown, keypoint_targets(object_keypoints(objects, shown), shown.boxes)


def _shares_statistics(head: nn.Module) -> bool:
    norms = [each for each in head.modules() if isinstance(each, _BatchNorm)]
    return all(isinstance(norm, nn.SyncBatchNorm | SynchronizedBatchNorm2d) for norm in norms)
