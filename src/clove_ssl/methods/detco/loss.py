"""InfoNCE at several depths of a network, each with its own queue.

Dimensions: B images, M levels, D channels, S negatives.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clove_ssl.methods.contrastive import Contrast, contrast


def contrast_levels(
    query: Tensor,  # (B, M, D) unit vectors
    positive: Tensor,  # (B, M, D) unit vectors
    negatives: Sequence[Tensor],  # M x (S, D) unit vectors
    *,
    temperature: float,
) -> Contrast:
    """The contrast of every image at every level: (B, M) each."""
    if query.shape[1] != len(negatives):
        raise ValueError(f"{query.shape[1]} levels of queries, {len(negatives)} of negatives")
    levels = [
        contrast(query[:, level], positive[:, level], bank, temperature=temperature)
        for level, bank in enumerate(negatives)
    ]
    return Contrast(*(torch.stack(figures, dim=1) for figures in zip(*levels, strict=True)))


def weigh_levels(losses: Tensor, weights: Sequence[float]) -> Tensor:
    """Mean over images of (B, M) losses, then the weighted sum over levels."""
    by_level = losses.mean(0)  # (M,)
    weighted = [weight * by_level[level] for level, weight in enumerate(weights)]
    return torch.stack(weighted).sum()
