"""The region proposal network: anchors, head, targets and losses. ``choose`` reads its output.

Anchors of a location are ordered by size, then by ratio (``ratio = height / width``), and are not
rounded. The one of cell ``(row, column)`` is centred at ``stride * (column, row)``, which is the
corner of the cell and not its middle.

Levels are flattened in the order of their anchors (row, column, anchor) and joined from the finest
to the coarsest, so that anchors, scores and offsets of an image are rows of the same number.

Dimensions: B images, A anchors per location, H x W cells, N anchors over all levels,
G ground-truth boxes of an image, k sampled anchors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.transfers import constant
from clove_ssl.tasks.rcnn.boxes import (
    RPN_WEIGHTS,
    Candidates,
    Match,
    MatchRule,
    encode_boxes,
    match_same_boxes,
    sample_labels,
)
from clove_ssl.tasks.rcnn.layers import start_small
from clove_ssl.tasks.rcnn.objects import ObjectTable, table_boxes


@dataclass(frozen=True)
class AnchorLayout:
    """Strides, sizes and ratios of the anchors of all levels of a feature pyramid."""

    strides: tuple[int, ...]
    sizes: tuple[tuple[float, ...], ...]
    """Square roots of the areas, in pixels, for every level."""
    ratios: tuple[float, ...]
    """Height over width."""

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.sizes):
            raise ValueError(f"{len(self.strides)} strides for {len(self.sizes)} lists of sizes")

    def anchors_per_cell(self) -> tuple[int, ...]:
        """A of every level."""
        return tuple(len(sizes) * len(self.ratios) for sizes in self.sizes)

    def grids(
        self, grid_sizes: Sequence[tuple[int, int]], *, device: torch.device | None = None
    ) -> list[Tensor]:
        """Anchors of maps of ``(H, W)`` cells, level by level: each (H*W*A, 4)."""
        cells = [cell_corners(sizes, self.ratios) for sizes in self.sizes]
        numbers = tuple(number for cell in cells for corners in cell for number in corners)
        place = device or torch.device("cpu")
        table = constant(numbers, place, dtype=torch.float32).view(-1, 4)
        levels = zip(
            torch.split(table, list(self.anchors_per_cell())), grid_sizes, self.strides, strict=True
        )
        return [grid_anchors(cell, grid, stride=stride) for cell, grid, stride in levels]


def cell_corners(sizes: Sequence[float], ratios: Sequence[float]) -> list[list[float]]:
    """The corners of the anchors around the origin."""
    widths = [(math.sqrt(size**2 / ratio), ratio) for size in sizes for ratio in ratios]
    halves = [(width / 2, width * ratio / 2) for width, ratio in widths]
    return [[-x, -y, x, y] for x, y in halves]


def grid_anchors(cell: Tensor, grid_size: tuple[int, int], *, stride: int) -> Tensor:
    """Repeat the anchors of a cell (A, 4) over a map of (H, W) cells: (H*W*A, 4)."""
    height, width = grid_size
    x, y = (
        torch.arange(0, count * stride, stride, device=cell.device, dtype=cell.dtype)
        for count in (width, height)
    )
    # Row by row, as the heads' maps are flattened; an anchor of another order would still train, to
    # nothing of use.
    shifts = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (H, W, 2)
    pairs = cell.view(-1, 2, 2)  # (A, 2, 2) both corners
    return (shifts[:, :, None, None] + pairs).view(-1, 4)


ANCHORS_PER_IMAGE = 256
ANCHOR_RULE = MatchRule(background_below=0.3, foreground_from=0.7, rescue=True)


class SampledAnchors(NamedTuple):
    """The anchors that a step learns from; those that are not valid only fill up."""

    foreground: Candidates  # (B, k)
    background: Candidates  # (B, k)


class RPNLosses(NamedTuple):
    """The two terms of the loss."""

    objectness: Tensor  # scalar
    offsets: Tensor  # scalar


class RPNHead(nn.Module):
    """Scores and offsets of the anchors of every location, shared by all levels.

    Args:
        in_channels: Channels of the maps, kept by the hidden convolution.
        anchors: Anchors per location.
    """

    def __init__(self, in_channels: int, anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, 3, padding=1)
        self.objectness_logits = nn.Conv2d(in_channels, anchors, 1)
        self.anchor_deltas = nn.Conv2d(in_channels, 4 * anchors, 1)
        for layer in (self.conv, self.objectness_logits, self.anchor_deltas):
            start_small(layer, std=0.01)

    def forward(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> logits (B, H*W*A) and offsets (B, H*W*A, 4)."""
        hidden = F.relu(self.conv(feature_map))
        logits = flatten_logits(self.objectness_logits(hidden))
        return logits, flatten_offsets(self.anchor_deltas(hidden))


def flatten_logits(logits: Tensor) -> Tensor:
    """(B, A, H, W) -> (B, H*W*A)."""
    # Anchors of a cell side by side, as ``grid_anchors`` lays them out.
    return logits.permute(0, 2, 3, 1).flatten(1)


def flatten_offsets(offsets: Tensor) -> Tensor:
    """(B, 4A, H, W), four channels per anchor -> (B, H*W*A, 4)."""
    images, channels, height, width = offsets.shape
    per_anchor = offsets.reshape(images, channels // 4, 4, height, width)
    return per_anchor.permute(0, 3, 4, 1, 2).flatten(1, 3)


def label_anchors(anchors: Tensor, truth: ObjectTable | Sequence[Tensor]) -> Match:
    """Match the anchors (N, 4) of B images with their ground truth (G_b, 4): (B, N).

    Anchors that reach over the border of the image take part like all others.
    """
    return match_same_boxes(anchors, _as_table(truth), ANCHOR_RULE)


def _as_table(truth: ObjectTable | Sequence[Tensor]) -> ObjectTable:
    return truth if isinstance(truth, ObjectTable) else table_boxes(truth)


def sample_anchors(
    label: Tensor,  # (B, N)
    priority: Tensor,  # (B, N)
    *,
    count: int = ANCHORS_PER_IMAGE,
) -> SampledAnchors:
    """Choose up to ``count`` anchors per image, at most half of them foreground."""
    kinds = sample_labels(label, priority, count=count, foreground_share=0.5)
    return SampledAnchors(*kinds)


def rpn_losses(
    logits: Tensor,  # (B, N)
    offsets: Tensor,  # (B, N, 4)
    *,
    anchors: Tensor,  # (N, 4)
    sampled: SampledAnchors,
    matched: Tensor,  # (B, N) rows of the ground truth
    truth: ObjectTable | Sequence[Tensor],  # B x (G_b, 4)
    anchors_per_image: int = ANCHORS_PER_IMAGE,
) -> RPNLosses:
    """Cross entropy of the sampled anchors and L1 distance of the foreground's offsets.

    Both are sums over ``anchors_per_image`` times B, however many anchors were sampled.
    """
    # A constant divisor: an image with few foreground anchors must not weigh them more.
    total = anchors_per_image * len(logits)
    rows, used = (torch.cat(column, dim=1) for column in zip(*sampled, strict=True))
    wanted = torch.zeros_like(rows, dtype=logits.dtype)  # (B, k)
    wanted[:, : sampled.foreground.rows.shape[1]] = 1
    # Rows that only fill up have the weight 0, so no shape depends on how many are used.
    objectness = F.binary_cross_entropy_with_logits(
        logits.gather(1, rows), wanted, weight=used.to(logits.dtype), reduction="sum"
    )
    target = _offset_targets(sampled.foreground, anchors=anchors, matched=matched, truth=truth)
    columns = sampled.foreground.rows[..., None].expand(-1, -1, 4)  # (B, k, 4)
    # ``where`` on both sides: targets of rows that fill up may be infinite, and infinity times 0 is
    # NaN.
    own = offsets.gather(1, columns).where(sampled.foreground.valid[..., None], 0)
    return RPNLosses(objectness / total, F.l1_loss(own, target, reduction="sum") / total)


def _offset_targets(
    foreground: Candidates,
    *,
    anchors: Tensor,
    matched: Tensor,
    truth: ObjectTable | Sequence[Tensor],
) -> Tensor:
    """Where foreground anchors should move; 0 for candidates that only fill up: (B, k, 4)."""
    table = _as_table(truth)
    # Indices of background may point anywhere, but foreground always has an object.
    objects = matched.gather(1, foreground.rows) + table.firsts[:, None]  # (B, k)
    target = encode_boxes(anchors[foreground.rows], table.boxes[objects], weights=RPN_WEIGHTS)
    return target.where(foreground.valid[..., None], 0)
