"""CLoVE's loss: rank the matching cells of another view above the hardest other ones.

Two forms are kept. ``release`` is the released code: one hinge per *image*,

    hinge(lambda * p - n + margin)

with p the mean of -2 cos over its matching pairs and n the mean of -2 cos
over its queries' negatives. ``paper`` is Eq. 2 of the paper: one hinge per
*pair* (i, j), summed over the pairs of an image,

    hinge(-lambda * cos(c_i, t_j) + cos(c_i, t_neg) + margin).

Either way a batch is the mean over its images.

Dimensions: B images, D channels, Q query cells, K key cells, N bank rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.methods.cells import (
    CellLoss,
    check_shapes,
    flatten_cells,
    images_in_mean,
    mean_over_pairs,
    share_without_match,
)
from clove_ssl.methods.clove.config import Form, RankingOptions

MOST_TURNS = 32  # negatives are picked one after the other by the kernel


def clove_loss(
    context: Tensor,  # (B, D, h, w) student, contextualized
    target: Tensor,  # (B, D, h', w') teacher, local
    matches: Tensor,  # (B, h*w, h'*w') bool, from match_cells
    *,
    positive_weight: float = 2.0,
    margin: float = 100.0,
    top_k: int = 10,
    form: Form = "release",
    negatives: Tensor | None = None,
    negatives_mask: Tensor | None = None,
    **choices: Any,
) -> Tensor:
    """The margin ranking loss of CLoVE, as a scalar.

    The ``release`` form works on dot products, so give it unit vectors; the
    ``paper`` form scales to unit length by itself. Negatives come from the
    other view or, when given, from the rows of the bank ``negatives`` (N, D)
    that ``negatives_mask`` (N,) allows. :class:`RankingOptions` explains the
    options, and names the other ``choices``.
    """
    options = RankingOptions(
        positive_weight=positive_weight, margin=margin, top_k=top_k, form=form, **choices
    )
    result = rank_cells(
        context, target, matches, options=options, bank=negatives, bank_mask=negatives_mask
    )
    return result.term_losses().squeeze(0)


def rank_cells(
    context: Tensor,
    target: Tensor,
    matches: Tensor,
    *,
    options: RankingOptions,
    bank: Tensor | None = None,
    bank_mask: Tensor | None = None,
) -> CellLoss:
    """What :func:`clove_loss` averages, image by image."""
    check_shapes(context, target, matches)
    matches = matches.bool()
    with torch.autocast(context.device.type, enabled=False):
        queries = comparable_rows(flatten_cells(context), options)  # (B, Q, D)
        keys = flatten_cells(target)  # (B, K, D)
        cosines = queries @ comparable_rows(keys, options).mT  # (B, Q, K)
        if bank is None:
            negatives = negatives_of_view(queries, keys, matches, options)
        else:
            negatives = negatives_of_bank(queries, bank.to(keys.dtype), bank_mask, options)
        return _rank(cosines, matches, negatives, options)


def _rank(
    cosines: Tensor, matches: Tensor, negatives: HardNegatives, options: RankingOptions
) -> CellLoss:
    """Combine (B, Q, K) cosines of candidates with the (B, Q) negatives."""
    concerned = matches.any(2) | (not options.spares_unmatched)  # (B, Q)
    positive = mean_over_pairs(cosines, matches)  # (B,)
    negative = _masked_mean(negatives.cosine, concerned & negatives.exists)  # (B,)
    if options.form == "release":
        gap = 2 * negative - 2 * options.positive_weight * positive  # (B,)
        loss = F.relu(gap + options.margin)
    else:
        loss = _hinge_per_pair(cosines, matches, negatives, options)
    if options.few_negatives == "drop":
        loss = loss.masked_fill((negatives.short & concerned).any(1), 0.0)
    return CellLoss(
        loss=loss,
        counted=images_in_mean(matches, skip_unmatched=options.unmatched_images == "skip"),
        pairs=matches.sum((1, 2)),
        positive_cosine=positive.detach(),
        unmatched_cells=share_without_match(matches),
        negative_cosine=negative.detach(),
        short_cells=(negatives.short & concerned).float().mean(1),
    )


def rank_views(
    context: Tensor,  # (V * B, D, h, w) student, contextualized, view by view
    target: Tensor,  # (views * B, D, h', w') teacher, local
    matches: Tensor,  # (terms * B, h*w, h'*w') bool
    *,
    images: int,  # B
    small: bool,  # whether the student's are small views, so that all pairs are compared
    options: RankingOptions,
) -> CellLoss:
    """As :func:`rank_cells` of all pairs of views, by kernels of ours; see :func:`can_rank_views`.

    Terms follow each other as in ``matches``: the teacher's views one after the other, for each
    the student's in their order, without the same view among large ones.
    """
    from clove_ssl.methods.clove.ranking_kernel import ranking_sums

    sums = ranking_sums(
        flatten_cells(context),
        flatten_cells(target),
        matches,
        images=images,
        small=small,
        top_k=options.top_k,
        drop=options.drop,
        spares=options.spares_unmatched,
    )
    positive = sums.positive / (sums.pairs + 1e-6)  # (terms * B,)
    negative = sums.negative / sums.queries.clamp(min=1)
    gap = 2 * negative - 2 * options.positive_weight * positive
    matched = sums.pairs > 0
    return CellLoss(
        loss=F.relu(gap + options.margin),
        counted=matched if options.unmatched_images == "skip" else torch.ones_like(matched),
        pairs=sums.pairs.long(),
        positive_cosine=positive.detach(),
        unmatched_cells=sums.unmatched / matches.shape[1],
        negative_cosine=negative.detach(),
        short_cells=sums.short / matches.shape[1],
    )


def can_rank_views(context: Tensor, target: Tensor, options: RankingOptions) -> bool:
    """Whether the kernels do what is asked for: the released code's form, on a GPU, small maps."""
    if not (context.is_cuda and has_triton()) or target.requires_grad:
        return False
    from clove_ssl.methods.clove.ranking_kernel import MOST_KEYS

    as_released = (options.form, options.averages_vectors, options.few_negatives)
    return (
        as_released == ("release", False, "clamp")
        and context.dtype == target.dtype == torch.float32
        and target.shape[2:].numel() <= MOST_KEYS
        and options.top_k <= MOST_TURNS
    )


def _hinge_per_pair(
    cosines: Tensor, matches: Tensor, negatives: HardNegatives, options: RankingOptions
) -> Tensor:
    """Eq. 2 for every image: (B,)."""
    gap = negatives.cosine[..., None] - options.positive_weight * cosines  # (B, Q, K)
    total = (F.relu(gap + options.margin) * matches).sum((1, 2))  # (B,)
    hinges = matches.sum((1, 2))  # (B,)
    if not options.spares_unmatched:
        lonely = negatives.exists & ~matches.any(2)  # (B, Q)
        total = total + (F.relu(negatives.cosine + options.margin) * lonely).sum(1)
        hinges = hinges + lonely.sum(1)
    return total if options.pair_reduction == "sum" else total / hinges.clamp(min=1)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of (B, Q) values where ``mask`` holds, 0 where it never does: (B,)."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


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
