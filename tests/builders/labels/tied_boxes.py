"""Boxes in the order of their logits, where equal logits leave the order open."""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.tasks.rcnn.boxes import pairwise_iou


def assert_same_but_for_ties(
    mine: tuple[Tensor, Tensor],  # boxes (N, 4), logits (N,), best first
    theirs: tuple[Tensor, Tensor],  # boxes (n, 4), logits (n,); n <= N
    *,
    boxes_within: float,
    logits_within: float,
    candidates: Tensor | None = None,  # all logits, also of boxes that were suppressed
    suppressed_above: float = 1.0,
) -> None:
    """Logits are the same in the same order, and every box stands at one of its logit.

    Where several candidates have exactly its logit, an overlapping one of them may have suppressed
    it, and it may have been the one that was left out at the end.
    """
    (boxes, logits), (expected, levels) = mine, theirs
    torch.testing.assert_close(logits[: len(levels)], levels, rtol=0, atol=logits_within)
    alike = (logits - levels[:, None]).abs() <= logits_within  # (n, N)
    same = (boxes - expected[:, None]).abs().amax(dim=-1) <= boxes_within  # (n, N)
    if candidates is not None:
        tied = (candidates == levels[:, None]).sum(dim=1) > 1  # (n,)
        same |= tied[:, None] & (pairwise_iou(expected, boxes) > suppressed_above)
        same |= (tied & (levels == levels[-1]))[:, None]
    assert (alike & same).any(dim=1).all()
