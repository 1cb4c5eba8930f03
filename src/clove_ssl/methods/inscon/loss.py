"""Pull and push of cells: find the same place among all cells of a multi-instance image.

    L_i = mean over j in P(i) of -log( e^(q_i.k_j / t) / (e^(q_i.k_j / t) + sum over n not in P(i)
          of e^(q_i.k_n / t)) )

P(i) are the cells of the other view that show the place of cell i. All other
cells of that view push: other places of the same photo, and all cells of the
photos beside it. Cells without a match have no loss.

All arithmetic is in fp32 (or float64 when given float64), also under autocast.

Dimensions: M images of P photos each, B = M * P photos, L cells of a photo, Q = P * L cells of an
image, D channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.layers.fp32 import all_at_least_fp32
from clove_ssl.methods.cells import mean_where


class PullAndPush(NamedTuple):
    """The loss of every cell of the query, and what explains it; 0 where nothing is counted."""

    loss: Tensor  # (M, Q)
    counted: Tensor  # (M, Q) bool, cells with a match
    positive_cosine: Tensor  # (M, Q) detached, mean over the matches
    negative_cosine: Tensor  # (M, Q) detached, mean over all others
    found: Tensor  # (M, Q) bool, a match is more alike than all others


def pull_and_push(
    query: Tensor,  # (M, Q, D) unit vectors
    key: Tensor,  # (M, Q, D) unit vectors
    matches: Tensor,  # (M, Q, Q) bool
    *,
    temperature: float,
) -> PullAndPush:
    """The loss of every cell against the cells of the same image in the other view."""
    _check_shapes(query, key, matches)
    query, key = all_at_least_fp32(query, key)
    with torch.autocast(query.device.type, enabled=False):
        logits = (query / temperature) @ key.mT  # (M, Q, Q)
        # Not minus infinity: a cell that nothing pushes would have no gradient but "not a number".
        lowest = torch.finfo(logits.dtype).min
        pushing = logits.masked_fill(matches, lowest).logsumexp(2, keepdim=True)  # (M, Q, 1)
        # As with one positive, but each has a denominator of its own with all negatives and itself:
        # positives do not push each other away.
        by_pair = torch.logaddexp(logits, pushing) - logits  # (M, Q, Q)
        cosines = logits.detach() * temperature
        nearest = cosines.masked_fill(~matches, lowest).amax(2)
        return PullAndPush(
            loss=mean_where(by_pair, matches, 2),
            counted=matches.any(2),
            positive_cosine=mean_where(cosines, matches, 2),
            negative_cosine=mean_where(cosines, ~matches, 2),
            found=matches.any(2) & (nearest > cosines.masked_fill(matches, lowest).amax(2)),
        )


def matches_in_images(matches: Tensor, photos: int) -> Tensor:
    """Matches within photos (B, L, L) as those within images of ``photos`` each: (M, Q, Q).

    Cells of different photos never match.
    """
    own = torch.eye(photos, dtype=torch.bool, device=matches.device)  # (P, P)
    by_photo = matches.reshape(-1, photos, matches.shape[1], 1, matches.shape[2])  # (M, P, L, 1, L)
    together = by_photo & own[:, None, :, None]  # (M, P, L, P, L)
    return together.flatten(3, 4).flatten(1, 2)


def _check_shapes(query: Tensor, key: Tensor, matches: Tensor) -> None:
    """Refuse what broadcasting would accept."""
    if query.shape != key.shape:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} must be alike")
    expected = (*query.shape[:2], query.shape[1])
    if matches.shape != expected:
        raise ValueError(f"matches has shape {tuple(matches.shape)}, the cells need {expected}")
