"""Hard negatives: the most similar cells a query does not match.

Of the ``top_k`` most similar candidates the ``drop`` most similar are skipped,
because they may be false negatives; the others act on the query through one
vector. Averaging their cosines is a product with their mean, so nothing of
size (queries, top_k, channels) is needed; averaging *vectors* scales that mean
to unit length before the product.

Dimensions: B images, D channels, Q query cells, K key cells, N bank rows,
T = top_k - drop hard negatives of a query.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.losses.ranking_options import RankingOptions


class HardNegatives(NamedTuple):
    """The negative side of every query."""

    cosine: Tensor  # (B, Q), 0 where there is no negative
    exists: Tensor  # (B, Q) bool
    short: Tensor  # (B, Q) bool, fewer than top_k candidates


def negatives_of_view(
    queries: Tensor,  # (B, Q, D)
    keys: Tensor,  # (B, K, D)
    matches: Tensor,  # (B, Q, K) bool
    options: RankingOptions,
) -> HardNegatives:
    """Take negatives from the cells of the other view that a query does not match."""
    comparable = comparable_rows(keys, options)  # (B, K, D)
    cosines = queries.detach() @ comparable.detach().mT  # (B, Q, K)
    chosen, weights = _hardest(cosines, ~matches, options)  # (B, Q, T) each
    mixture = torch.zeros_like(cosines).scatter(-1, chosen, weights)  # (B, Q, K)
    mean = mixture @ (keys if options.averages_vectors else comparable)  # (B, Q, D)
    short = (~matches).sum(-1) < options.top_k  # (B, Q)
    return _act_on(queries, mean, weights, short=short, options=options)


def negatives_of_bank(
    queries: Tensor,  # (B, Q, D)
    bank: Tensor,  # (N, D)
    mask: Tensor | None,  # (N,) bool, rows that may be used
    options: RankingOptions,
) -> HardNegatives:
    """Take negatives from a bank of rows that show other images."""
    mask = torch.ones(len(bank), dtype=torch.bool, device=bank.device) if mask is None else mask
    comparable = comparable_rows(bank, options)  # (N, D)
    cosines = queries.detach() @ comparable.mT  # (B, Q, N)
    chosen, weights = _hardest(cosines, mask.expand_as(cosines), options)  # (B, Q, T) each
    rows = bank if options.averages_vectors else comparable
    mean = (rows[chosen] * weights[..., None]).sum(-2)  # (B, Q, D)
    short = (mask.sum() < options.top_k).expand(queries.shape[:2])  # (B, Q)
    return _act_on(queries, mean, weights, short=short, options=options)


def comparable_rows(rows: Tensor, options: RankingOptions) -> Tensor:
    """Rows whose products count as cosines: the release form trusts what it is given."""
    return F.normalize(rows, dim=-1) if options.form == "paper" else rows


def _hardest(cosines: Tensor, pool: Tensor, options: RankingOptions) -> tuple[Tensor, Tensor]:
    """Columns of the hard negatives and their weights, which sum to 1 or are all 0.

    Infinity marks what may not be chosen but never leaves this function, where
    it would turn means into infinity and gradients into NaN.
    """
    candidates = cosines.masked_fill(~pool, -torch.inf)  # (B, Q, K)
    ranked = candidates.topk(min(options.top_k, cosines.shape[-1]), dim=-1)
    used = (ranked.values != -torch.inf)[..., options.drop :].to(cosines.dtype)  # (B, Q, T)
    return ranked.indices[..., options.drop :], used / used.sum(-1, keepdim=True).clamp(min=1)


def _act_on(
    queries: Tensor, mean: Tensor, weights: Tensor, *, short: Tensor, options: RankingOptions
) -> HardNegatives:
    if options.averages_vectors:
        mean = F.normalize(mean, dim=-1)
    return HardNegatives(cosine=(queries * mean).sum(-1), exists=weights.any(-1), short=short)
