"""Arithmetic of boxes: offsets, overlap, clipping, and which truth a box learns from.

Boxes are ``x1, y1, x2, y2``; a box covers ``(x2 - x1) * (y2 - y1)``, without an extra pixel.
Offsets are ``dx, dy, dw, dh``: the shift of the centre in units of the source box and the
logarithm of the ratio of sides, all multiplied by weights that bring them to a similar scale.
Labels are 1 (foreground), 0 (background) and -1 (not used).

Dimensions: B images, N, M boxes, G ground-truth boxes of one image,
K offsets (one per class) for the same box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.layers.fp32 import all_at_least_fp32
from clove_ssl.layers.transfers import constant, send_like
from clove_ssl.tasks.rcnn.objects import ObjectTable

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
    # A logarithm, so that half and double are equally far from 1.
    scale = torch.log(target_size / source_size)  # (..., 2)
    factors = constant(weights, shift.device, dtype=shift.dtype)
    return torch.cat([shift, scale], dim=-1) * factors


def decode_boxes(source: Tensor, offsets: Tensor, *, weights: Weights) -> Tensor:
    """Move boxes (..., 4) by offsets (..., 4K): (..., 4K), in float32 or better.

    Growth is limited to ``LARGEST_LOG_SCALE``, shrinking is not limited.
    """
    # In half precision a pixel of a large image is already below one unit in the last place.
    offsets, source = all_at_least_fp32(offsets, source)
    center, size = _center_size(source[..., None, :])  # (..., 1, 2)
    per_class = offsets.reshape(*offsets.shape[:-1], offsets.shape[-1] // 4, 4)
    scaled = per_class / constant(weights, center.device, dtype=center.dtype)  # (..., K, 4)
    moved = scaled[..., :2] * size + center  # (..., K, 2)
    # In Detectron2's order of operations: ties between boxes are decided by the last bit.
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
    # Instead of a guard in the divisor, which would change every overlap a little.
    return torch.where(shared > 0, shared / union, 0.0)


def clip_boxes(boxes: Tensor, image_size: tuple[int, int]) -> Tensor:
    """Cut boxes (..., 4) at the borders of an image of ``(height, width)``."""
    height, width = image_size
    x = boxes[..., 0::2].clamp(0, width)  # (..., 2)
    y = boxes[..., 1::2].clamp(0, height)  # (..., 2)
    return torch.stack([x, y], dim=-1).flatten(-2)


def image_borders(image_sizes: Sequence[tuple[int, int]], like: Tensor) -> Tensor:
    """The largest coordinates of boxes in B images of ``(height, width)``: (B, 4)."""
    return send_like([[width, height, width, height] for height, width in image_sizes], like)


def clip_to_images(boxes: Tensor, borders: Tensor) -> Tensor:
    """Cut the boxes (B, N, 4) of B images at their borders (B, 4)."""
    return torch.minimum(boxes.clamp(min=0), borders[:, None])


def has_area(boxes: Tensor) -> Tensor:
    """Which boxes (..., 4) have sides longer than nothing: (...) bool."""
    return ((boxes[..., 2:] - boxes[..., :2]) > 0).all(dim=-1)


def _shared_length(one: Tensor, other: Tensor) -> Tensor:
    """The common length of intervals ``low, high`` (..., 2)."""
    low = torch.maximum(one[..., 0], other[..., 0])
    return torch.minimum(one[..., 1], other[..., 1]).sub_(low).clamp_(min=0)


def _center_size(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 4) -> centres (..., 2) and sides (..., 2)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * size, size


FOREGROUND = 1
BACKGROUND = 0
UNUSED = -1


class Match(NamedTuple):
    """The best ground truth of every box."""

    matched: Tensor  # (..., N) int64, anything where the image has no ground truth
    label: Tensor  # (..., N) int8


@dataclass(frozen=True)
class MatchRule:
    """What makes a box foreground or background; in between it is not used.

    With ``rescue`` no ground truth is left without a box: all boxes that reach its largest
    overlap, ties included, become foreground. They keep the index of their own best ground
    truth, which may be another one. A ground truth that meets no box at all is left out.
    """

    background_below: float
    foreground_from: float
    rescue: bool = False

    def label(self, best: Tensor, rescued: Tensor | None) -> Tensor:
        """The labels of boxes with these largest overlaps (..., N): (..., N) int8."""
        foreground = best >= self.foreground_from
        if rescued is not None:
            foreground |= rescued
        # In between neither: a box that covers half an object would teach the wrong answer either
        # way.
        label = torch.full_like(best, UNUSED, dtype=torch.int8)
        # Foreground last: a rescued box may lie below the background's limit and still counts.
        label.masked_fill_(best < self.background_below, BACKGROUND)
        return label.masked_fill_(foreground, FOREGROUND)


def match_boxes(boxes: Tensor, truth: Tensor, rule: MatchRule) -> Match:
    """Label boxes (..., N, 4) by their largest overlap with a ground truth (..., G, 4).

    Rows without an area may fill up the ground truth of images with fewer objects.
    """
    overlap = pairwise_iou(_at_least_one(truth), boxes)  # (..., G, N)
    # Of equal overlaps the first object wins, as in Detectron2.
    best, matched = overlap.max(dim=-2)  # (..., N)
    rescued = _reaches_largest(overlap).any(dim=-2) if rule.rescue else None  # (..., N)
    return Match(matched, rule.label(best, rescued))


def match_same_boxes(boxes: Tensor, truth: ObjectTable, rule: MatchRule) -> Match:
    """Label the same boxes (N, 4) in B images: (B, N).

    Objects lie behind each other instead of being filled up to the largest number: there are so
    many anchors that this counts.
    """
    overlap = pairwise_iou(truth.boxes, boxes)  # (T, N)
    image, place = truth.owners  # (T,)
    best = _largest_of_images(overlap, truth)  # (B, N)
    # Of equal overlaps the first object wins: it has the highest rank. Where there is none, the
    # rank is 0, and the place is, too.
    width = truth.images.shape[1] - 2
    rank = torch.where(overlap == best[image], (width - place).int()[:, None], 0)  # (T, N)
    matched = (width - _largest_of_images(rank, truth)).remainder_(width).long()  # (B, N)
    rescued = None
    if rule.rescue:
        rescued = _largest_of_images(_reaches_largest(overlap).int(), truth) > 0  # (B, N)
    return Match(matched, rule.label(best, rescued))


def _largest_of_images(values: Tensor, truth: ObjectTable) -> Tensor:
    """The largest of values (T, N) over the objects of each image, 0 at least: (B, N)."""
    image = truth.owners[0, :, None].expand_as(values)
    largest = values.new_zeros(len(truth.images), values.shape[1])
    return largest.scatter_reduce_(0, image, values, "amax")


def _at_least_one(truth: Tensor) -> Tensor:
    """The boxes (..., G, 4), or where G is 0 one without an area, which nothing overlaps."""
    return truth if truth.shape[-2] else truth.new_zeros(*truth.shape[:-2], 1, 4)


def _reaches_largest(overlap: Tensor) -> Tensor:
    """Which boxes overlap a ground truth most: (..., G, N) bool."""
    if overlap.shape[-1] == 0:
        return overlap > 0
    largest = overlap.amax(dim=-1, keepdim=True)  # (..., G, 1)
    # Where nothing overlaps, every box would tie at 0 and have an infinite offset.
    return (overlap == largest) & (largest > 0)


class Candidates(NamedTuple):
    """Candidates of one kind, those of the lowest priority numbers first."""

    rows: Tensor  # (..., k) int64
    valid: Tensor  # (..., k) bool; the others only fill up


def sample_labels(
    label: Tensor,  # (..., N)
    priority: Tensor,  # (..., N) int64; the lowest are taken
    *,
    count: int,
    foreground_share: float,
) -> tuple[Candidates, Candidates]:
    """The foreground and the background that a step uses, row by row.

    At most ``foreground_share`` of ``count`` are foreground; background fills what is left, as
    far as there is any.
    """
    foreground = _first(label == FOREGROUND, priority, int(count * foreground_share))
    background = _first(label == BACKGROUND, priority, count)
    # Kept on the device: how many foreground boxes there are would otherwise be a wait in every
    # step.
    left = count - foreground.valid.sum(dim=-1, keepdim=True)  # (..., 1)
    place = torch.arange(background.valid.shape[-1], device=label.device)
    return foreground, Candidates(background.rows, background.valid & (place < left))


def _first(candidate: Tensor, priority: Tensor, count: int) -> Candidates:
    """The ``count`` candidates (..., N) of the lowest priority numbers."""
    # Those who are none come last instead of being left out: shapes stay fixed.
    others_last = priority.masked_fill(~candidate, torch.iinfo(torch.int64).max)
    count = min(count, candidate.shape[-1])
    rows = others_last.topk(count, dim=-1, largest=False).indices  # (..., k)
    return Candidates(rows, candidate.gather(-1, rows))
