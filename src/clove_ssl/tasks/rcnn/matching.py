"""Which ground truth an anchor or a proposal learns from, and which of them are used.

Labels are 1 (foreground), 0 (background) and -1 (not used).

Dimensions: B images, N boxes, G ground-truth boxes of one image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.tasks.rcnn.boxes import pairwise_iou

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
        label = torch.full_like(best, UNUSED, dtype=torch.int8)
        label.masked_fill_(best < self.background_below, BACKGROUND)
        return label.masked_fill_(foreground, FOREGROUND)


def match_boxes(boxes: Tensor, truth: Tensor, rule: MatchRule) -> Match:
    """Label boxes (..., N, 4) by their largest overlap with a ground truth (..., G, 4).

    Rows without an area may fill up the ground truth of images with fewer objects.
    """
    overlap = pairwise_iou(_at_least_one(truth), boxes)  # (..., G, N)
    best, matched = overlap.max(dim=-2)  # (..., N)
    rescued = _reaches_largest(overlap).any(dim=-2) if rule.rescue else None  # (..., N)
    return Match(matched, rule.label(best, rescued))


def match_same_boxes(boxes: Tensor, truth: Sequence[Tensor], rule: MatchRule) -> Match:
    """Label the same boxes (N, 4) in B images with ground truth (G_b, 4): (B, N).

    Objects lie behind each other instead of being filled up to the largest number: there are so
    many anchors that this counts.
    """
    rows = [_at_least_one(each) for each in truth]
    counts = [len(each) for each in rows]
    overlap = pairwise_iou(torch.cat(rows), boxes)  # (sum of G_b, N)
    best, matched = zip(*(each.max(dim=0) for each in torch.split(overlap, counts)), strict=True)
    rescued = None
    if rule.rescue:
        tied = torch.split(_reaches_largest(overlap), counts)
        rescued = torch.stack([each.any(dim=0) for each in tied])  # (B, N)
    return Match(torch.stack(matched), rule.label(torch.stack(best), rescued))


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
    left = count - foreground.valid.sum(dim=-1, keepdim=True)  # (..., 1)
    place = torch.arange(background.valid.shape[-1], device=label.device)
    return foreground, Candidates(background.rows, background.valid & (place < left))


def _first(candidate: Tensor, priority: Tensor, count: int) -> Candidates:
    """The ``count`` candidates (..., N) of the lowest priority numbers."""
    others_last = priority.masked_fill(~candidate, torch.iinfo(torch.int64).max)
    count = min(count, candidate.shape[-1])
    rows = others_last.topk(count, dim=-1, largest=False).indices  # (..., k)
    return Candidates(rows, candidate.gather(-1, rows))
