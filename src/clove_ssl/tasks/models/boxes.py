"""Arithmetic of boxes: offsets between boxes, overlap, clipping.

Boxes are ``x1, y1, x2, y2``; a box covers ``(x2 - x1) * (y2 - y1)``, without an extra pixel.
Offsets are ``dx, dy, dw, dh``: the shift of the centre in units of the source box and the
logarithm of the ratio of sides, all multiplied by weights that bring them to a similar scale.

Dimensions: N, M boxes, K offsets (one per class) for the same box.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Weights = tuple[float, float, float, float]

RPN_WEIGHTS: Weights = (1.0, 1.0, 1.0, 1.0)
ROI_WEIGHTS: Weights = (10.0, 10.0, 5.0, 5.0)

# One offset may enlarge a side of 16 pixels to 1000, so that exp cannot overflow.
LARGEST_LOG_SCALE = math.log(1000 / 16)


def encode_boxes(source: Tensor, target: Tensor, *, weights: Weights) -> Tensor:
    """Offsets that move ``source`` (N, 4) onto ``target`` (N, 4): (N, 4)."""
    source_center, source_size = _center_size(source)
    target_center, target_size = _center_size(target)
    if not bool((source_size > 0).all()):
        raise ValueError("boxes without an area have no offsets; remove them before encoding")
    shift = (target_center - source_center) / source_size  # (N, 2)
    scale = torch.log(target_size / source_size)  # (N, 2)
    return torch.cat([shift, scale], dim=-1) * shift.new_tensor(weights)


def decode_boxes(source: Tensor, offsets: Tensor, *, weights: Weights) -> Tensor:
    """Move boxes (N, 4) by offsets (N, 4K): (N, 4K), in float32 or better.

    Growth is limited to ``LARGEST_LOG_SCALE``, shrinking is not limited.
    """
    # In half precision a pixel of a large image is already below one unit in the last place.
    dtype = torch.promote_types(offsets.dtype, torch.float32)
    center, size = _center_size(source.to(dtype)[:, None])  # (N, 1, 2)
    per_class = offsets.to(dtype).reshape(len(offsets), offsets.shape[1] // 4, 4)
    scaled = per_class / center.new_tensor(weights)  # (N, K, 4)
    moved = scaled[..., :2] * size + center  # (N, K, 2)
    half = 0.5 * scaled[..., 2:].clamp(max=LARGEST_LOG_SCALE).exp() * size  # (N, K, 2)
    return torch.cat([moved - half, moved + half], dim=-1).flatten(1)


def box_areas(boxes: Tensor) -> Tensor:
    """(..., 4) -> (...)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return size[..., 0] * size[..., 1]


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes (N, 4) and (M, 4): (N, M).

    Pairs that share no area have 0, also where both boxes have none.
    """
    low = torch.maximum(first[:, None, :2], second[:, :2])  # (N, M, 2)
    high = torch.minimum(first[:, None, 2:], second[:, 2:])  # (N, M, 2)
    shared = (high - low).clamp(min=0).prod(dim=-1)  # (N, M)
    union = box_areas(first)[:, None] + box_areas(second) - shared  # (N, M)
    return torch.where(shared > 0, shared / union, torch.zeros_like(shared))


def clip_boxes(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Cut boxes (..., 4) at the borders of an image of ``(height, width)``."""
    height, width = image_size
    x = boxes[..., 0::2].clamp(0, width)  # (..., 2)
    y = boxes[..., 1::2].clamp(0, height)  # (..., 2)
    return torch.stack([x, y], dim=-1).flatten(-2)


def has_area(boxes: Tensor, *, smallest_side: float = 0.0) -> Tensor:
    """Which boxes (N, 4) have both sides longer than ``smallest_side``: (N,) bool."""
    return ((boxes[:, 2:] - boxes[:, :2]) > smallest_side).all(dim=1)


def _center_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 4) -> centres (..., 2) and sides (..., 2)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * size, size
