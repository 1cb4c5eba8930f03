"""Features of regions: RoIAlign on one map, and on the level of a pyramid that fits a region.

Two rules are in use. ``ALIGNED`` shifts by half a cell, takes as many samples as a bin has cells,
and gives 0 for a region without an area. ``LEGACY``, which DensePose still uses, shifts nothing,
takes 2 x 2 samples per bin and enlarges regions to one cell at least.

A region is the index of its image and a box: ``image, x1, y1, x2, y2``.

Dimensions: B images, C channels, R regions over all images, S x S bins, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import roi_align

from clove_ssl.layers.fp32 import all_at_least_fp32
from clove_ssl.tasks.rcnn.boxes import box_areas

CANONICAL_SIDE = 224.0
CANONICAL_LEVEL = 4


class RoIAlignRule(NamedTuple):
    """How RoIAlign places its samples."""

    aligned: bool
    sampling: int
    """Samples per bin and axis; 0 takes one per cell that a bin covers."""


ALIGNED = RoIAlignRule(aligned=True, sampling=0)
LEGACY = RoIAlignRule(aligned=False, sampling=2)


def pool_regions(
    features: Tensor,  # (B, C, H, W)
    regions: Tensor,  # (R, 5)
    *,
    stride: int,
    size: int,
    rule: RoIAlignRule = ALIGNED,
) -> Tensor:
    """Pool regions from one map: (R, C, S, S)."""
    # There is no kernel for bf16, whose numbers could not place a box anyway.
    pooled: Tensor = roi_align(
        *all_at_least_fp32(features, regions),
        output_size=(size, size),
        spatial_scale=1 / stride,
        sampling_ratio=rule.sampling,
        aligned=rule.aligned,
    )
    return pooled.to(features.dtype)


def pool_pyramid(
    features: Sequence[Tensor],  # L x (B, C, H_l, W_l)
    regions: Tensor,  # (R, 5)
    *,
    strides: Sequence[int],
    size: int,
    rule: RoIAlignRule = ALIGNED,
    lowest_level: int = 2,
) -> Tensor:
    """Pool every region from the level that suits its size: (R, C, S, S)."""
    levels = assign_levels(regions[:, 1:], levels=len(features), lowest_level=lowest_level)
    order = levels.argsort(stable=True)  # (R,) the finest level first
    places = torch.arange(len(features), device=levels.device)
    # One question to the device instead of one per level.
    counts = (levels == places[:, None]).sum(dim=1).tolist()
    parts = torch.split(regions[order], counts)
    # A level without regions is pooled as well: all parameters must stay in the graph.
    sorted_maps = torch.cat(
        [
            pool_regions(level_map, part, stride=stride, size=size, rule=rule)
            for level_map, part, stride in zip(features, parts, strides, strict=True)
        ]
    )  # (R, C, S, S)
    return torch.empty_like(sorted_maps).index_copy_(0, order, sorted_maps)


def assign_levels(boxes: Tensor, *, levels: int = 4, lowest_level: int = 2) -> Tensor:
    """Index of the pyramid level for boxes (R, 4), from 0 = the finest: (R,) int64.

    A region of 224 x 224 belongs to level 4, and half the side to one level lower.
    """
    relative_side = box_areas(boxes).sqrt() / CANONICAL_SIDE  # (R,)
    # The small number keeps the logarithm of a region without an area finite.
    level = torch.floor(CANONICAL_LEVEL + torch.log2(relative_side + 1e-8))
    return level.clamp(lowest_level, lowest_level + levels - 1).long() - lowest_level


def batched_regions(boxes: Sequence[Tensor]) -> Tensor:
    """Boxes of B images (R_b, 4) with the index of their image in front: (R, 5)."""
    rows = [
        torch.cat([each.new_full((len(each), 1), index), each], dim=1)
        for index, each in enumerate(boxes)
    ]
    return torch.cat(rows)
