"""How far two programs agree about what is in an image.

Detections are paired: the same class, and the nearest box. What has no partner near it is counted,
since a box at the edge of a threshold may be dropped by one program alone.

Dimensions: N and M detections.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PIXELS = 0.1
SCORE = 1e-3
"""What two programs may differ by."""


@dataclass(frozen=True)
class Agreement:
    """The largest differences of paired detections, and how many stay alone."""

    box: float = 0.0
    score: float = 0.0
    pairs: int = 0
    alone: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            max(self.box, other.box),
            max(self.score, other.score),
            self.pairs + other.pairs,
            self.alone + other.alone,
        )

    @property
    def holds(self) -> bool:
        """Whether every pair is close, and hardly anything is alone."""
        return self.box <= PIXELS and self.score <= SCORE and self.alone * 100 <= self.pairs

    def __str__(self) -> str:
        return (
            f"{self.pairs} detections: boxes differ by {self.box:.1e} pixels, scores by "
            f"{self.score:.1e} at most, {self.alone} without a partner"
        )


@torch.no_grad()
def compare_detections(
    boxes: Tensor,  # (N, 4)
    scores: Tensor,  # (N,)
    classes: Tensor,  # (N,)
    other_boxes: Tensor,  # (M, 4)
    other_scores: Tensor,  # (M,)
    other_classes: Tensor,  # (M,)
) -> Agreement:
    """Pair the detections of two programs for one image."""
    if len(scores) == 0 or len(other_scores) == 0:
        return Agreement(alone=len(scores) + len(other_scores))
    distance = (boxes[:, None] - other_boxes).abs().amax(-1)  # (N, M)
    gap = (scores[:, None] - other_scores).abs()  # (N, M)
    differs = classes[:, None] != other_classes
    # A tenth of a pixel weighs as much as a thousandth of the score.
    cost = (distance / PIXELS + gap / SCORE).masked_fill(differs, torch.inf)
    best, partner = cost.min(dim=1)  # (N,)
    near = best.isfinite() & (distance.gather(1, partner[:, None])[:, 0] < 1)
    rows = near.nonzero().squeeze(1)
    taken = set(partner[rows].tolist())
    if len(rows) == 0:
        return Agreement(alone=len(scores) + len(other_scores))
    return Agreement(
        float(distance[rows, partner[rows]].max()),
        float(gap[rows, partner[rows]].max()),
        len(rows),
        len(scores) - len(rows) + len(other_scores) - len(taken),
    )
