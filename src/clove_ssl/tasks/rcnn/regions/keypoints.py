"""Keypoints of regions: heatmap targets, loss, and reading points from heatmaps.

A keypoint head predicts for every keypoint one S x S map of logits over the region; the loss is a
softmax over its cells. A keypoint is ``x, y, visibility``, where any visibility above 0 counts.

Dimensions: R regions, P keypoints of an object, S x S cells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

HEATMAP_SIDE = 56
_IGNORED = -1


class KeypointTargets(NamedTuple):
    """The cell of every keypoint."""

    cells: Tensor  # (R, P) int64, row * S + column; 0 where not valid
    valid: Tensor  # (R, P) bool, visible and inside the region


class FoundKeypoints(NamedTuple):
    """The keypoints read from heatmaps."""

    points: Tensor  # (R, P, 2) x, y in the image
    logits: Tensor  # (R, P)
    scores: Tensor  # (R, P)


def keypoint_targets(
    keypoints: Tensor,  # (R, P, 3)
    boxes: Tensor,  # (R, 4)
    *,
    side: int = HEATMAP_SIDE,
) -> KeypointTargets:
    """Cells of the keypoints in the maps of their regions.

    The right and the lower edge of a region belong to its last cells.
    """
    low, high = boxes[:, None, :2], boxes[:, None, 2:]  # (R, 1, 2)
    points = keypoints[..., :2]  # (R, P, 2)
    cell = torch.floor((points - low) * (side / (high - low)))  # (R, P, 2) x, y
    # Exactly on the far edge a point would be in the cell behind the last one.
    cell = torch.where(points == high, side - 1, cell)
    valid = ((cell >= 0) & (cell < side)).all(dim=-1) & (keypoints[..., 2] > 0)  # (R, P)
    column, row = cell.where(valid[..., None], 0).long().unbind(-1)  # (R, P)
    return KeypointTargets(row * side + column, valid)


def regions_with_keypoints(keypoints: Tensor, boxes: Tensor) -> Tensor:
    """Which regions (R, 4) contain a visible one of their keypoints (R, P, 3): (R,) bool."""
    points = keypoints[..., :2]  # (R, P, 2)
    inside = ((points >= boxes[:, None, :2]) & (points <= boxes[:, None, 2:])).all(dim=-1)
    return (inside & (keypoints[..., 2] > 0)).any(dim=1)


def keypoint_loss(
    logits: Tensor,  # (R, P, S, S)
    targets: KeypointTargets,
    *,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Cross entropy summed over valid keypoints, divided by their number or by ``normalizer``.

    Without a valid keypoint the loss is 0, with a gradient.
    """
    maps = logits.flatten(2).flatten(0, 1)  # (R*P, S*S)
    cells = targets.cells.masked_fill(~targets.valid, _IGNORED).flatten()  # (R*P,)
    total = F.cross_entropy(maps, cells, reduction="sum", ignore_index=_IGNORED)
    return total / (targets.valid.sum().clamp(min=1) if normalizer is None else normalizer)


@torch.no_grad()
def find_keypoints(logits: Tensor, boxes: Tensor) -> FoundKeypoints:
    """Place every keypoint at the maximum of its map (R, P, S, S), enlarged to the region (R, 4).

    The score divides by the sum over the S x S cells, not over the enlarged map, so that it does
    not depend on the size of the region.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)  # (R, 2) w, h
    pixels = sides.ceil()  # (R, 2)
    peaks = logits.new_zeros(logits.shape[:2])  # (R, P)
    cells = boxes.new_zeros(*logits.shape[:2], 2)  # (R, P, 2) x, y in the enlarged map
    for region, (width, height) in enumerate(pixels.long().tolist()):
        peaks[region], position = _highest(logits[region], height=height, width=width)
        cells[region] = torch.stack([position % width, position // width], dim=-1).to(boxes.dtype)
    # The enlarged map has whole pixels, the region has not; hence the small correction.
    points = (cells + 0.5) * (sides / pixels)[:, None] + boxes[:, None, :2]  # (R, P, 2)
    # The peak comes from the enlarged map and may lie above all cells, so a score may exceed 1.
    scores = 1 / (logits - peaks[..., None, None]).exp().sum(dim=(2, 3))  # (R, P)
    return FoundKeypoints(points, peaks, scores)


def _highest(maps: Tensor, *, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Maximum of the maps (P, S, S) enlarged to height x width, and its flat position: (P,)."""
    enlarged = F.interpolate(
        maps[None], size=(height, width), mode="bicubic", align_corners=False
    )  # (1, P, height, width)
    peak, position = enlarged[0].flatten(1).max(dim=1)  # (P,)
    return peak, position
