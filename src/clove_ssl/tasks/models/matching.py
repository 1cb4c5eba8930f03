"""Which ground truth an anchor or a proposal learns from, and which of them are used.

Labels are 1 (foreground), 0 (background) and -1 (not used).

Dimensions: N boxes, G ground-truth boxes of one image.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from clove_ssl.tasks.models.boxes import pairwise_iou

FOREGROUND = 1
BACKGROUND = 0
UNUSED = -1

Order = torch.Generator | Literal["lowest-first"]
"""Draw at random with this generator, or take the lowest indices (to compare programs)."""


class Match(NamedTuple):
    """The best ground truth of every box of an image."""

    matched: Tensor  # (N,) int64, 0 where the image has no ground truth
    label: Tensor  # (N,) int8


def match_boxes(
    boxes: Tensor,  # (N, 4)
    truth: Tensor,  # (G, 4)
    *,
    background_below: float,
    foreground_from: float,
    rescue: bool = False,
) -> Match:
    """Label boxes by their largest overlap with a ground truth.

    With ``rescue`` no ground truth is left without a box: all boxes that reach its largest
    overlap, ties included, become foreground. They keep the index of their own best ground
    truth, which may be another one.
    """
    if len(truth) == 0:
        nothing = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
        return Match(nothing, nothing.to(torch.int8))
    overlap = pairwise_iou(truth, boxes)  # (G, N)
    best, matched = overlap.max(dim=0)  # (N,)
    label = torch.full_like(matched, UNUSED, dtype=torch.int8)  # (N,)
    label[best < background_below] = BACKGROUND
    label[best >= foreground_from] = FOREGROUND
    if rescue and len(boxes):
        largest = overlap.amax(dim=1, keepdim=True)  # (G, 1)
        if not bool((largest > 0).all()):
            # Every box would tie at 0, and become foreground with an infinite offset.
            raise ValueError("a ground-truth box meets no box; remove empty and far-off ones first")
        label[(overlap == largest).any(dim=0)] = FOREGROUND
    return Match(matched, label)


def sample_labels(
    label: Tensor,  # (N,)
    *,
    count: int,
    foreground_share: float,
    order: Order,
) -> tuple[Tensor, Tensor]:
    """Indices of the foreground and the background that a step uses.

    At most ``foreground_share`` of ``count`` are foreground; background fills what is left, as
    far as there is any.
    """
    foreground = torch.nonzero(label == FOREGROUND).squeeze(1)
    background = torch.nonzero(label == BACKGROUND).squeeze(1)
    wanted = min(len(foreground), int(count * foreground_share))
    return _take(foreground, wanted, order), _take(background, count - wanted, order)


def _take(candidates: Tensor, count: int, order: Order) -> Tensor:
    """Up to ``count`` of the candidates (n,)."""
    if order == "lowest-first":
        return candidates[:count]
    shuffled = torch.randperm(len(candidates), generator=order, device=order.device)
    return candidates[shuffled[:count].to(candidates.device)]
