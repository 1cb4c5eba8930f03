"""From scores and offsets of anchors to the few regions that the second stage looks at.

Scores stay logits to the end, because the probabilities of sure regions would be equal.
torchvision suppresses one group of boxes per call, and the host waits for each: with 16 images of
five levels that is a third of the time of a small detector. On a GPU a kernel of our own takes all
groups together.

Dimensions: B images, N_l anchors of a level, P regions, level by level, best first in each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torchvision.ops import nms

from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.layers.transfers import pad_rows, send
from clove_ssl.tasks.rcnn.boxes import (
    RPN_WEIGHTS,
    clip_to_images,
    decode_boxes,
    has_area,
)


class Proposals(NamedTuple):
    """Regions of one image that may show an object."""

    boxes: Tensor  # (P, 4)
    logits: Tensor  # (P,)


class ProposalTable(NamedTuple):
    """Regions of B images, best first, in tables of one length: nothing of it was asked for yet."""

    boxes: Tensor  # (B, P, 4), anything beyond the count of an image
    logits: Tensor  # (B, P)
    counts: Tensor  # (B,) int64
    finite: Tensor  # () bool, whether all numbers were finite that they were chosen from

    def split(self, *, not_finite: Literal["raise", "drop"]) -> list[Proposals]:
        """The regions image by image; waits for the device."""
        all_finite, *counts = torch.cat([self.finite[None], self.counts]).tolist()
        if not_finite == "raise":
            refuse_divergence(bool(all_finite))
        return [
            Proposals(image[:count], scores[:count])
            for image, scores, count in zip(self.boxes, self.logits, counts, strict=True)
        ]


def refuse_divergence(all_finite: bool) -> None:
    """Stop a training whose proposals are not numbers any more."""
    if not all_finite:
        raise FloatingPointError("Training diverged: a proposed box or its score is not finite")


def table_of(proposals: Sequence[Proposals]) -> ProposalTable:
    """The regions of all images as one table."""
    logits = pad_rows([each.logits for each in proposals])  # (B, P)
    counts = send([len(each.logits) for each in proposals], logits.device, dtype=torch.int64)
    boxes = pad_rows([each.boxes for each in proposals])
    return ProposalTable(boxes, logits, counts, torch.ones_like(counts[0], dtype=torch.bool))


class _Ranked(NamedTuple):
    """The best regions of all levels, level by level."""

    boxes: Tensor  # (B, P, 4)
    logits: Tensor  # (B, P)
    level_sizes: list[int]  # P in all


@dataclass(frozen=True)
class ProposalLimits:
    """How many proposals survive."""

    before_nms: int
    """Best scores that are kept in every level."""
    after_nms: int
    """Best scores that are kept in an image, over all levels."""
    nms_overlap: float = 0.7


@torch.no_grad()
def propose_table(
    logits: Sequence[Tensor],  # levels x (B, N_l)
    offsets: Sequence[Tensor],  # levels x (B, N_l, 4)
    *,
    anchors: Sequence[Tensor],  # levels x (N_l, 4)
    borders: Tensor,  # (B, 4) largest coordinates of an image
    limits: ProposalLimits,
) -> ProposalTable:
    """The best regions of every image, without a question to the device.

    Non-maximum suppression works inside a level; then all levels compete. What is not finite is
    left out.
    """
    # By level first, or the fine levels with their many anchors would leave no room for the others.
    best = _best_of_levels(logits, offsets, anchors, count=limits.before_nms)
    boxes = clip_to_images(best.boxes, borders)  # (B, P, 4)
    # Asked before clipping, which turns infinity into the border of the image.
    finite = best.boxes.isfinite().all(dim=-1) & best.logits.isfinite()  # (B, P)
    usable = finite & has_area(boxes)  # (B, P)
    boxes = boxes.where(usable[..., None], 0)  # what has no area suppresses nothing
    # Inside a level only: boxes of two levels may overlap as much as they like until the end.
    kept = usable & survivors(boxes, best.level_sizes, limits.nms_overlap)  # (B, P)
    count = min(limits.after_nms, kept.shape[1])
    # As many rows for every image. Those behind its count hold what was suppressed, and ``counts``
    # says where they begin.
    ranked = best.logits.where(kept, -math.inf).topk(count, dim=1)
    chosen = boxes.gather(1, ranked.indices[..., None].expand(-1, -1, 4))
    return ProposalTable(chosen, ranked.values, kept.sum(dim=1).clamp_(max=count), finite.all())


def _best_of_levels(
    logits: Sequence[Tensor], offsets: Sequence[Tensor], anchors: Sequence[Tensor], *, count: int
) -> _Ranked:
    """The ``count`` best regions of every level of each image."""
    tops = [each.topk(min(count, each.shape[1]), dim=1) for each in logits]  # (B, P_l)
    moves = [
        each.gather(1, top.indices[..., None].expand(-1, -1, 4))
        for each, top in zip(offsets, tops, strict=True)
    ]
    starts = [each[top.indices] for each, top in zip(anchors, tops, strict=True)]
    boxes = decode_boxes(
        torch.cat(starts, dim=1), torch.cat(moves, dim=1), weights=RPN_WEIGHTS
    )  # (B, P, 4)
    scores = torch.cat([top.values for top in tops], dim=1)  # (B, P)
    return _Ranked(boxes, scores.to(boxes.dtype), [each.shape[1] for each in starts])


def survivors(boxes: Tensor, level_sizes: Sequence[int], overlap: float) -> Tensor:
    """Which of ``boxes`` (B, P, 4) no better one of their level covers by more than ``overlap``.

    Returns:
        (B, P) bool.
    """
    if boxes.is_cuda and has_triton():
        from clove_ssl.tasks.rcnn.proposals.suppression_kernel import survivors_on_gpu

        return survivors_on_gpu(boxes, level_sizes, overlap)
    kept = torch.zeros(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for image, marks in zip(boxes, kept, strict=True):
        levels = zip(image.split(list(level_sizes)), marks.split(list(level_sizes)), strict=True)
        for level, level_marks in levels:
            # Ranks instead of scores: they come sorted, and equal logits would otherwise be
            # suppressed in an order that torchvision does not promise.
            order = torch.arange(len(level), 0, -1, device=level.device)
            level_marks[nms(level, order.to(level.dtype), overlap)] = True
    return kept
