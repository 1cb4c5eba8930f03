"""Metrics that tell a healthy run from a collapsing one.

Pure functions. Spread, rank and entropy cost a decomposition or a softmax, so
the engine asks for them at logged steps only.

Dimensions: N feature rows, D channels, B images, H heads, L cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.cells import CellLoss

MOST_ROWS = 4096  # rows whose spread and rank are looked at
PLACE_IMAGES = 128  # whose cells are asked for their place
PLACE_RIDGE = 0.01  # penalty of weights, as a share of the mean squared feature and per row


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
    wide = at_least_fp32(rows)
    # Not of the covariance, whose eigenvalues are squares: small ones would drown in fp32.
    singular = torch.linalg.svdvals(wide)  # (min(N, D),)
    share = singular / singular.sum().clamp(min=torch.finfo(wide.dtype).tiny)
    entropy: Tensor = torch.special.entr(share).sum()
    return entropy.exp()


def attention_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of (B, H, L, L) attention: 1 looks everywhere alike, 0 at one cell."""
    entropy: Tensor = torch.special.entr(at_least_fp32(weights)).sum(-1).mean()
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


def embedding_rows(maps: Tensor) -> Tensor:
    """Of maps (B, D, h, w) as many cells as the metrics look at, detached: (N, D)."""
    enough = -(-MOST_ROWS // maps.shape[2:].numel())
    return maps.detach()[:enough].flatten(2).mT.flatten(0, 1)[:MOST_ROWS]


@torch.no_grad()
def place_shares(maps: Tensor) -> dict[str, Tensor]:
    """How well a cell's height and width in the view can be read from its feature, linearly.

    Of maps (B, D, h, w) half of the images fit a ridge regression, and the others
    show what it explains of the variance of the places: 1 is all, 0 nothing.
    """
    b, _, h, w = maps.shape
    # Normal equations square the condition number, which fp32 does not bear.
    rows = maps.flatten(2).mT.to(torch.float64)  # (B, L, D)
    rows = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=2)  # a constant, penalised little
    heights = torch.linspace(-1, 1, h, dtype=rows.dtype, device=rows.device)
    widths = torch.linspace(-1, 1, w, dtype=rows.dtype, device=rows.device)
    places = torch.stack([heights.repeat_interleave(w), widths.repeat(h)], dim=1)  # (L, 2)
    fitted, asked = rows[: b // 2].flatten(0, 1), rows[b // 2 :].flatten(0, 1)
    gram = fitted.mT @ fitted
    penalty = PLACE_RIDGE * gram.diagonal().mean().clamp(min=1e-30)
    identity = torch.eye(len(gram), dtype=rows.dtype, device=rows.device)
    weights = torch.linalg.solve(
        gram + penalty * identity, fitted.mT @ places.repeat(b // 2, 1)
    )  # (D + 1, 2)
    true = places.repeat(b - b // 2, 1)
    missed = (asked @ weights - true).square().sum(0)  # (2,)
    spread = (true - true.mean(0)).square().sum(0)
    explained = 1 - missed / spread.clamp(min=1e-30)
    height, width = torch.where(spread > 0, explained, 0.0).clamp(min=0)
    return {"place_share_height": height, "place_share_width": width}


def match_metrics(parts: Sequence[CellLoss]) -> dict[str, Tensor]:
    """What explains a loss on matched cells: similarities, and how many took part.

    ``parts`` are the terms with large student views, then those with small ones, if any.
    """
    pairs = torch.cat([part.pairs for part in parts])
    cosines = torch.cat([part.positive_cosine for part in parts])
    metrics = {
        "cos_positive": cosines.sum() / (pairs > 0).sum().clamp(min=1),
        "images_without_match": (pairs == 0).float().mean(),
        "cells_without_match": torch.cat([part.unmatched_cells for part in parts]).mean(),
    }
    for name, part in zip(("global", "local"), parts, strict=False):
        metrics[f"positives_per_image_{name}"] = part.pairs.float().mean()
    negative = [part.negative_cosine for part in parts if part.negative_cosine is not None]
    short = [part.short_cells for part in parts if part.short_cells is not None]
    if negative and short:
        metrics["cos_negative"] = torch.cat(negative).mean()
        metrics["cells_short_of_negatives"] = torch.cat(short).mean()
    return metrics
