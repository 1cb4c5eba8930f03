"""Losses on pasted views: only the cells of the foreground take part.

All arithmetic is in fp32 (or float64 when given float64), also under autocast.

Dimensions: B images, D channels, a map is h x w cells; L and K are the cells of
the query and of the key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.layers.fp32 import all_at_least_fp32


def pool_foreground(cells: Tensor, mask: Tensor) -> Tensor:
    """Mean of the cells (B, D, h, w) inside ``mask`` (B, h, w), or zero if it is empty: (B, D)."""
    chosen = mask[:, None].to(cells.dtype)  # (B, 1, h, w)
    return (cells * chosen).sum((2, 3)) / chosen.sum((2, 3)).clamp(min=1)


def align_foreground(
    query: Tensor,  # (B, D, h, w) unit vectors
    key: Tensor,  # (B, D, h', w') unit vectors
    query_mask: Tensor,  # (B, h, w) bool
    key_mask: Tensor,  # (B, h', w') bool
) -> Tensor:
    """Every foreground cell of the key looks for the foreground among all cells of the query.

        loss = -mean over foreground pairs (i, j) of log softmax over i of (q_i . k_j)

    The cosines are not divided by a temperature. Gives (B,); an image that lacks
    foreground in either view has the loss 0.
    """
    query, key, query_mask, key_mask = all_at_least_fp32(query, key, query_mask, key_mask)
    inside, there = query_mask.flatten(1), key_mask.flatten(1)  # (B, L), (B, K)
    with torch.autocast(query.device.type, enabled=False):
        cosines = query.flatten(2).mT @ key.flatten(2)  # (B, L, K)
        # log softmax is linear in the cosine of a pair, so its mean over i is taken at once.
        mean = (inside[:, None] @ cosines)[:, 0] / inside.sum(1, keepdim=True).clamp(
            min=1
        )  # (B, K)
        by_key = cosines.logsumexp(1) - mean  # (B, K)
        loss = (by_key * there).sum(1) / there.sum(1).clamp(min=1)
    # Without foreground the mean above is 0, and the loss would still pull at everything.
    return loss * inside.any(1)
