"""From scores and offsets of anchors to the few regions that the second stage looks at.

Scores stay logits to the end, because the probabilities of sure regions would be equal.

Dimensions: B images, N_l anchors of a level, P regions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torchvision.ops import batched_nms

from clove_ssl.tasks.models.boxes import RPN_WEIGHTS, clip_boxes, decode_boxes, has_area

# The logit of a probability that differs from 1 by 1e-10, as float64 rounds it.
GROUND_TRUTH_LOGIT = math.log((1 - 1e-10) / (1 - (1 - 1e-10)))


class Proposals(NamedTuple):
    """Regions of one image that may show an object."""

    boxes: Tensor  # (P, 4)
    logits: Tensor  # (P,)


@dataclass(frozen=True)
class ProposalLimits:
    """How many proposals survive."""

    before_nms: int
    """Best scores that are kept in every level."""
    after_nms: int
    """Best scores that are kept in an image, over all levels."""
    nms_overlap: float = 0.7


C4_TRAINING = ProposalLimits(before_nms=12000, after_nms=2000)
C4_TESTING = ProposalLimits(before_nms=6000, after_nms=1000)
FPN_TRAINING = ProposalLimits(before_nms=2000, after_nms=1000)
FPN_TESTING = ProposalLimits(before_nms=1000, after_nms=1000)
KEYPOINT_TRAINING = ProposalLimits(before_nms=2000, after_nms=1500)


@torch.no_grad()
def propose(
    logits: Sequence[Tensor],  # levels x (B, N_l)
    offsets: Sequence[Tensor],  # levels x (B, N_l, 4)
    *,
    anchors: Sequence[Tensor],  # levels x (N_l, 4)
    image_sizes: Sequence[tuple[int, int]],
    limits: ProposalLimits,
    not_finite: Literal["raise", "drop"],
) -> list[Proposals]:
    """The best regions of every image, best first; no gradient flows through them.

    Non-maximum suppression works inside a level; then all levels compete. Numbers that are not
    finite mean a diverged training (``raise``) or a region less (``drop``).
    """
    ranked = [
        _best_of_level(*level, count=limits.before_nms)
        for level in zip(logits, offsets, anchors, strict=True)
    ]
    boxes = torch.cat([level.boxes for level in ranked], dim=1)  # (B, P, 4)
    scores = torch.cat([level.logits for level in ranked], dim=1)  # (B, P)
    counts = torch.tensor([level.logits.shape[1] for level in ranked], device=scores.device)
    levels = torch.repeat_interleave(counts)  # (P,)
    _refuse_not_finite(boxes, scores, not_finite)
    return [
        _thin_out(Proposals(*image), levels, image_size=size, limits=limits)
        for *image, size in zip(boxes, scores, image_sizes, strict=True)
    ]


def append_ground_truth(proposals: Proposals, truth: Tensor) -> Proposals:
    """Put the ground truth (G, 4) of a training image behind its proposals, as sure ones."""
    return Proposals(
        torch.cat([proposals.boxes, truth.to(proposals.boxes.dtype)]),
        torch.cat([proposals.logits, proposals.logits.new_full((len(truth),), GROUND_TRUTH_LOGIT)]),
    )


def _best_of_level(logits: Tensor, offsets: Tensor, anchors: Tensor, *, count: int) -> Proposals:
    """The ``count`` best regions of each image: (B, P, 4) and (B, P)."""
    scores, index = logits.topk(min(count, logits.shape[1]), dim=1)  # (B, P)
    chosen = offsets.gather(1, index[..., None].expand(-1, -1, 4))  # (B, P, 4)
    boxes = decode_boxes(
        anchors[index].flatten(0, 1), chosen.flatten(0, 1), weights=RPN_WEIGHTS
    )  # (B*P, 4)
    return Proposals(boxes.view_as(chosen), scores.to(boxes.dtype))


def _refuse_not_finite(boxes: Tensor, scores: Tensor, reaction: Literal["raise", "drop"]) -> None:
    if reaction == "raise" and not (boxes.isfinite().all() and scores.isfinite().all()):
        raise FloatingPointError("a box or a score of the RPN is not finite: training diverged")


def _thin_out(
    proposals: Proposals, levels: Tensor, *, image_size: tuple[int, int], limits: ProposalLimits
) -> Proposals:
    """Clip to the image, remove what is empty or not finite, suppress and cut."""
    finite = proposals.boxes.isfinite().all(dim=1) & proposals.logits.isfinite()  # (P,)
    boxes = clip_boxes(proposals.boxes, image_size)
    usable = finite & has_area(boxes)  # (P,)
    boxes, logits = boxes[usable], proposals.logits[usable]
    keep = batched_nms(boxes, logits, levels[usable], limits.nms_overlap)[: limits.after_nms]
    return Proposals(boxes[keep], logits[keep])
