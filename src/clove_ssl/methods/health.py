"""Figures that tell a healthy run from a collapsing one.

Pure functions of detached tensors. They cost a decomposition or a softmax, so
the engine asks for them at logged steps only.

Dimensions: N feature rows, D channels, B images, H heads, L cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from clove_ssl.modules.normalization import unit_vectors


def feature_std(rows: Tensor) -> Tensor:
    """Spread of (N, D) rows scaled to unit length: 1 is ideal, 0 is total collapse.

    The ideal is that of vectors spread evenly over the sphere, whose channels
    each have a standard deviation of one over root D.
    """
    spread = unit_vectors(rows).std(dim=0, correction=0)  # (D,)
    return spread.mean() * math.sqrt(rows.shape[1])


def effective_rank(rows: Tensor) -> Tensor:
    """How many dimensions (N, D) rows use: exp of the entropy of their singular values.

    It lies between 1 (all rows on one line) and the smaller of N and D.
    """
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    singular = torch.linalg.svdvals(wide)  # (min(N, D),)
    share = singular / singular.sum().clamp(min=torch.finfo(wide.dtype).tiny)
    entropy: Tensor = torch.special.entr(share).sum()
    return entropy.exp()


def attention_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of (B, H, L, L) attention: 1 looks everywhere alike, 0 at one cell."""
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    entropy: Tensor = torch.special.entr(wide).sum(-1).mean()
    return entropy / math.log(max(2, weights.shape[-1]))


@torch.no_grad()
def parameter_distance(a: Iterable[Tensor], b: Iterable[Tensor]) -> Tensor:
    """Norm of the difference of two lists of parameters, relative to the norm of ``a``."""
    mine, theirs = [tensor.detach() for tensor in a], [tensor.detach() for tensor in b]
    difference = _total_norm(list(torch._foreach_sub(mine, theirs)))
    return difference / _total_norm(mine).clamp(min=1e-12)


def _total_norm(tensors: list[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(tensors))))
    return norm
