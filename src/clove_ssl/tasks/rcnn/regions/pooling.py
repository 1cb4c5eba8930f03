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
from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.tasks.rcnn.boxes import box_areas

CANONICAL_SIDE = 224.0
CANONICAL_LEVEL = 4
LOWEST_LEVEL = 2
_MOST_LEVELS = 4  # of the kernel


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
    if has_kernel([features], regions):
        return _pool_on_gpu([features], regions, None, stride=stride, size=size, rule=rule)
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
    levels: Tensor | None = None,  # (R,) of the regions, where they are known already
) -> Tensor:
    """Pool every region from the level that suits its size: (R, C, S, S)."""
    if levels is None:
        levels = assign_levels(regions[:, 1:], levels=len(features))
    if has_kernel(features, regions) and _halves(strides):
        return _pool_on_gpu(features, regions, levels, stride=strides[0], size=size, rule=rule)
    # Sorted once and put back at the end: one pooling per level instead of one per region.
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


def has_kernel(features: Sequence[Tensor], regions: Tensor) -> bool:
    """Whether a kernel of our own pools from these maps.

    It is for GPUs, and not for those who ask for results that repeat themselves bit for bit.
    """
    dtypes = {each.dtype for each in features}
    return (
        all(each.is_cuda for each in features)  # first, since a graph may not look at sizes
        and len(regions) > 0
        and len(dtypes) == 1
        and dtypes <= {torch.float32, torch.float16, torch.bfloat16}
        and len(features) <= _MOST_LEVELS
        and not torch.are_deterministic_algorithms_enabled()
        and has_triton()
    )


def _halves(strides: Sequence[int]) -> bool:
    """Whether every map has half the cells per side of the one before."""
    return all(stride == strides[0] << level for level, stride in enumerate(strides))


def _pool_on_gpu(
    features: Sequence[Tensor],
    regions: Tensor,
    levels: Tensor | None,
    *,
    stride: int,
    size: int,
    rule: RoIAlignRule,
) -> Tensor:
    from clove_ssl.tasks.rcnn.regions.pooling_kernel import pool_on_gpu

    pooled: Tensor = pool_on_gpu(
        features,
        regions,
        levels,
        stride=stride,
        size=size,
        sampling=rule.sampling,
        aligned=rule.aligned,
    )
    return pooled


def assign_levels(boxes: Tensor, *, levels: int = 4) -> Tensor:
    """Index of the pyramid level for boxes (R, 4), from 0 = the finest: (R,) int64.

    A region of 224 x 224 belongs to level 4, and half the side to one level lower.
    """
    relative_side = box_areas(boxes).sqrt() / CANONICAL_SIDE  # (R,)
    # The small number keeps the logarithm of a region without an area finite.
    level = torch.floor(CANONICAL_LEVEL + torch.log2(relative_side + 1e-8))
    return (level - LOWEST_LEVEL).clamp(0, levels - 1).long()


def batched_regions(boxes: Sequence[Tensor]) -> Tensor:
    """Boxes of B images (R_b, 4) with the index of their image in front: (R, 5)."""
    rows = [
        torch.cat([each.new_full((len(each), 1), index), each], dim=1)
        for index, each in enumerate(boxes)
    ]
    return torch.cat(rows)
