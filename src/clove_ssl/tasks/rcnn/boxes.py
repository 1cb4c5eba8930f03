"""Arithmetic of boxes: offsets between boxes, overlap, clipping.

Boxes are ``x1, y1, x2, y2``; a box covers ``(x2 - x1) * (y2 - y1)``, without an extra pixel.
Offsets are ``dx, dy, dw, dh``: the shift of the centre in units of the source box and the
logarithm of the ratio of sides, all multiplied by weights that bring them to a similar scale.

Dimensions: N, M boxes, K offsets (one per class) for the same box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clove_ssl.layers.fp32 import all_at_least_fp32
from clove_ssl.layers.transfers import send_like

Weights = tuple[float, float, float, float]

RPN_WEIGHTS: Weights = (1.0, 1.0, 1.0, 1.0)
ROI_WEIGHTS: Weights = (10.0, 10.0, 5.0, 5.0)

# One offset may enlarge a side of 16 pixels to 1000, so that exp cannot overflow.
LARGEST_LOG_SCALE = math.log(1000 / 16)


def encode_boxes(source: Tensor, target: Tensor, *, weights: Weights) -> Tensor:
    """Offsets that move ``source`` (..., 4) onto ``target`` (..., 4): (..., 4).

    They are not finite where a box has no area.
    """
    source_center, source_size = _center_size(source)
    target_center, target_size = _center_size(target)
    shift = (target_center - source_center) / source_size  # (..., 2)
    scale = torch.log(target_size / source_size)  # (..., 2)
    return torch.cat([shift, scale], dim=-1) * send_like(weights, shift)


def decode_boxes(source: Tensor, offsets: Tensor, *, weights: Weights) -> Tensor:
    """Move boxes (..., 4) by offsets (..., 4K): (..., 4K), in float32 or better.

    Growth is limited to ``LARGEST_LOG_SCALE``, shrinking is not limited.
    """
    # In half precision a pixel of a large image is already below one unit in the last place.
    offsets, source = all_at_least_fp32(offsets, source)
    center, size = _center_size(source[..., None, :])  # (..., 1, 2)
    per_class = offsets.reshape(*offsets.shape[:-1], offsets.shape[-1] // 4, 4)
    scaled = per_class / send_like(weights, center)  # (..., K, 4)
    moved = scaled[..., :2] * size + center  # (..., K, 2)
    half = 0.5 * scaled[..., 2:].clamp(max=LARGEST_LOG_SCALE).exp() * size  # (..., K, 2)
    return torch.cat([moved - half, moved + half], dim=-1).flatten(-2)


def box_areas(boxes: Tensor) -> Tensor:
    """(..., 4) -> (...)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return size[..., 0] * size[..., 1]


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes (..., N, 4) and (..., M, 4): (..., N, M).

    Pairs that share no area have 0, also where both boxes have none.
    """
    one, other = first[..., :, None, :], second[..., None, :, :]  # (..., N, 1, 4), (..., 1, M, 4)
    # In place and axis by axis, because all anchors of a batch meet all of its objects here.
    width = _shared_length(one[..., 0::2], other[..., 0::2])  # (..., N, M)
    shared = width.mul_(_shared_length(one[..., 1::2], other[..., 1::2]))
    union = (box_areas(one) + box_areas(other)).sub_(shared)
    return torch.where(shared > 0, shared / union, 0.0)


def clip_boxes(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Cut boxes (..., 4) at the borders of an image of ``(height, width)``."""
    height, width = image_size
    x = boxes[..., 0::2].clamp(0, width)  # (..., 2)
    y = boxes[..., 1::2].clamp(0, height)  # (..., 2)
    return torch.stack([x, y], dim=-1).flatten(-2)


def clip_to_images(boxes: Tensor, image_sizes: Sequence[tuple[int, int]]) -> Tensor:
    """Cut the boxes (B, N, 4) of B images of ``(height, width)`` at their borders."""
    corners = [[width, height, width, height] for height, width in image_sizes]
    return torch.minimum(boxes.clamp(min=0), send_like(corners, boxes)[:, None])


def has_area(boxes: Tensor, *, smallest_side: float = 0.0) -> Tensor:
    """Which boxes (..., 4) have both sides longer than ``smallest_side``: (...) bool."""
    return ((boxes[..., 2:] - boxes[..., :2]) > smallest_side).all(dim=-1)


def _shared_length(one: Tensor, other: Tensor) -> Tensor:
    """The common length of intervals ``low, high`` (..., 2)."""
    low = torch.maximum(one[..., 0], other[..., 0])
    return torch.minimum(one[..., 1], other[..., 1]).sub_(low).clamp_(min=0)


def _center_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 4) -> centres (..., 2) and sides (..., 2)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * size, size
