"""Triton kernels for CLoVE's ranking loss; import only where Triton is installed.

torch forms the cosines of all pairs of cells several times over, sorts them and scatters weights
into a table as large as they are. Here one program holds the cosines of some query cells of a pair
of views in its registers, picks the hardest negatives there, and writes a few sums. In the backward
pass the cells that were picked, one byte for each, take the place of the cosines.

Views lie one after the other along the batch, for the student and for the teacher. A *term*
compares one student view with one teacher view; a large view is not compared with itself.

Dimensions: N terms x images, V student views, Q query cells, K key cells, D channels.
"""
# mypy: ignore-errors

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES_AT_ONCE = 32
CHANNELS_AT_ONCE = 32
GRADIENT_CHANNELS = 64
MOST_KEYS = 256  # more do not fit into the registers of a program
SUMS = 6


@triton.jit
def _views_of(term, views, SMALL: tl.constexpr):
    """Student and teacher view of a term: the teacher's views one after the other, for each the
    student's in their order, less its own among large ones."""
    if SMALL:
        return term % views, term // views
    rest, teacher = term % (views - 1), term // (views - 1)
    return rest + (rest >= teacher).to(tl.int32), teacher


@triton.jit
def _term_of(student, teacher, views, SMALL: tl.constexpr):
    """The other way round."""
    if SMALL:
        return teacher * views + student
    return teacher * (views - 1) + student - (student > teacher).to(tl.int32)


@triton.jit
def _cosines(
    context,
    target,
    query_row,
    key_row,
    query_there,
    key_there,
    channels: tl.constexpr,
    PRECISION: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
):
    """Products of all query with all key cells of a tile, [Q, K]."""
    total = tl.zeros([Q, K], tl.float32)
    # Some channels at a time, which leaves the registers to the products.
    for start in range(0, channels, C):
        channel = start + tl.arange(0, C)
        known = (channel < channels)[None, :]
        queries = tl.load(
            context + query_row[:, None] * channels + channel[None, :],
            mask=query_there[:, None] & known,
            other=0.0,
        )
        keys = tl.load(
            target + key_row[:, None] * channels + channel[None, :],
            mask=key_there[:, None] & known,
            other=0.0,
        )
        total = tl.dot(queries, tl.trans(keys), total, input_precision=PRECISION)
    return total


@triton.jit
def _hardest(
    cosines, pool, key, TOP: tl.constexpr, DROP: tl.constexpr, Q: tl.constexpr, K: tl.constexpr
):
    """Which of the pool are among the TOP largest of their row but not among the DROP first."""
    # One maximum after the other instead of a sort: TOP is about ten, and nothing leaves registers.
    left = tl.where(pool, cosines, float("-inf"))
    picked = tl.zeros([Q, K], tl.int32)
    for turn in tl.static_range(TOP):
        largest = tl.max(left, 1)[:, None]
        # Of equal ones the first, and none where nothing is left.
        first = tl.min(tl.where((left == largest) & (largest > float("-inf")), key, K), 1)
        hit = key == first[:, None]
        if turn >= DROP:
            picked = tl.where(hit, 1, picked)
        left = tl.where(hit, float("-inf"), left)
    return picked


@triton.jit(do_not_specialize=["images", "queries", "keys"])
def _rank(
    context,
    target,
    matches,
    sums,
    chosen,
    images,
    queries,
    keys,
    views: tl.constexpr,
    channels: tl.constexpr,
    TOP: tl.constexpr,
    DROP: tl.constexpr,
    SMALL: tl.constexpr,
    SPARES: tl.constexpr,
    PRECISION: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
):
    """Sums over some queries of a pair of views, and the negatives that were chosen for them."""
    pair = tl.program_id(0).to(tl.int64)
    image = pair % images
    student, teacher = _views_of(pair // images, views, SMALL)
    query = tl.program_id(1) * Q + tl.arange(0, Q)
    key = tl.arange(0, K)
    there = (query < queries)[:, None] & (key < keys)[None, :]
    cosines = _cosines(
        context,
        target,
        (student * images + image) * queries + query,
        (teacher * images + image) * keys + key,
        query < queries,
        key < keys,
        channels,
        PRECISION,
        Q,
        K,
        C,
    )
    at = (pair * queries + query)[:, None] * keys + key[None, :]
    matched = (tl.load(matches + at, mask=there, other=0) != 0) & there
    pool = there & (matched == 0)
    picked = _hardest(cosines, pool, key[None, :], TOP, DROP, Q, K)
    free = tl.sum(pool.to(tl.int32), 1)
    has_match = tl.max(matched.to(tl.int32), 1)
    # Queries of images without a match repel their negatives, too, unless they are spared.
    concerned = (query < queries) & ((has_match > 0) | (not SPARES))
    used = tl.where(concerned, tl.maximum(tl.minimum(free, TOP) - DROP, 0), 0)
    negative = tl.sum(tl.where(picked > 0, cosines, 0.0), 1) / tl.maximum(used, 1)
    # Times zero: not-a-number that no match and no negative shows must reach the loss all the same.
    positive = tl.sum(tl.where(matched, cosines, cosines * 0.0), 1)
    # A row of SUMS for every program, added up by torch in a fixed order; atomic additions would
    # round differently from run to run. Kernels cannot see SUMS, hence the number.
    row = sums + (pair * tl.num_programs(1) + tl.program_id(1)) * 6
    tl.store(row, tl.sum(tl.where(query < queries, positive, 0.0), 0))
    tl.store(row + 1, tl.sum(tl.where(used > 0, negative, 0.0), 0))
    tl.store(row + 2, tl.sum(tl.sum(matched.to(tl.int32), 1), 0).to(tl.float32))
    tl.store(row + 3, tl.sum((used > 0).to(tl.int32), 0).to(tl.float32))
    alone = (query < queries) & (has_match == 0)
    tl.store(row + 4, tl.sum(alone.to(tl.int32), 0).to(tl.float32))
    tl.store(row + 5, tl.sum((concerned & (free < TOP)).to(tl.int32), 0).to(tl.float32))
    # Not just that a key was picked, but among how many: the backward pass divides by that, and
    # needs nothing else of this one. A byte is enough, as TOP is far below 256.
    tl.store(chosen + at, (picked * used[:, None]).to(tl.uint8), mask=there)


@triton.jit
def _weights(matches, chosen, for_positive, for_negative, pair, query, key, queries, keys):
    """What the sums of a pair of views pull with at the product of each query and key, [Q, K]."""
    there = (query < queries)[:, None] & (key < keys)[None, :]
    at = (pair * queries + query)[:, None] * keys + key[None, :]
    share = tl.load(chosen + at, mask=there, other=0).to(tl.float32)
    matched = tl.load(matches + at, mask=there, other=0) != 0
    repelled = tl.where(share > 0, tl.load(for_negative + pair) / share, 0.0)
    return repelled + tl.where(matched, tl.load(for_positive + pair), 0.0)


@triton.jit(do_not_specialize=["images", "queries", "keys"])
def _pull(
    target,
    matches,
    chosen,
    for_positive,
    for_negative,
    inner,
    images,
    queries,
    keys,
    views: tl.constexpr,
    teachers: tl.constexpr,
    channels: tl.constexpr,
    SMALL: tl.constexpr,
    PRECISION: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    C: tl.constexpr,
):
    """Gradient of some queries of a student view: keys, weighted by what they did to the sums."""
    view = tl.program_id(0).to(tl.int64)
    student, image = view // images, view % images
    query = tl.program_id(1) * Q + tl.arange(0, Q)
    channel = tl.program_id(2) * C + tl.arange(0, C)
    key = tl.arange(0, K)
    known = (key < keys)[:, None] & (channel < channels)[None, :]
    total = tl.zeros([Q, C], tl.float32)
    # All terms of a student view in one program: its gradient is written once, not added up.
    for teacher in tl.static_range(teachers):
        rows = target + ((teacher * images + image) * keys + key)[:, None] * channels
        rows += channel[None, :]
        pair = _term_of(student, teacher, views, SMALL) * images + image
        if SMALL:
            weight = _weights(matches, chosen, for_positive, for_negative, pair, query, key,
                              queries, keys)  # fmt: skip
            total = tl.dot(weight, tl.load(rows, mask=known, other=0.0), total,
                           input_precision=PRECISION)  # fmt: skip
        else:
            if student != teacher:  # noqa: PLR5501 (the one is known when compiling, the other not)
                weight = _weights(matches, chosen, for_positive, for_negative, pair, query, key,
                                  queries, keys)  # fmt: skip
                total = tl.dot(weight, tl.load(rows, mask=known, other=0.0), total,
                               input_precision=PRECISION)  # fmt: skip
    at = (view * queries + query)[:, None] * channels + channel[None, :]
    mask = (query < queries)[:, None] & (channel < channels)[None, :]
    tl.store(inner + at, total, mask=mask)


class RankingSums(NamedTuple):
    """Over the cells of every pair of views, (N,) fp32 each."""

    positive: Tensor  # cosines of the matching pairs of cells
    pairs: Tensor  # how many these are
    negative: Tensor  # mean cosines of the queries' negatives
    queries: Tensor  # how many queries have one
    unmatched: Tensor  # queries without a match
    short: Tensor  # queries with a negative term and fewer candidates than looked for


class _Ranking(torch.autograd.Function):
    """Sums of cosines, of which the first and the third have gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        context: Tensor,  # (V * B, Q, D)
        target: Tensor,  # (teacher views * B, K, D)
        matches: Tensor,  # (N, Q, K) bool
        images: int,
        small: bool,
        top_k: int,
        drop: int,
        spares: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, channels = context.shape[1], target.shape[1], context.shape[2]
        blocks = triton.cdiv(queries, QUERIES_AT_ONCE)
        sums = context.new_empty(len(matches), blocks, SUMS)
        chosen = torch.empty_like(matches, dtype=torch.uint8)
        ctx.sizes = (images, queries, keys)
        ctx.options = {"views": len(context) // images, "channels": channels, "SMALL": small,
                       "PRECISION": _precision(), **_tile(keys)}  # fmt: skip
        _rank[(len(matches), blocks)](
            context, target, matches, sums, chosen, *ctx.sizes, TOP=top_k, DROP=drop,
            SPARES=spares, C=CHANNELS_AT_ONCE, **ctx.options,
        )  # fmt: skip
        ctx.save_for_backward(target, matches, chosen)
        summed = sums.sum(1)  # (N, 6)
        counts = summed[:, 2:]
        ctx.mark_non_differentiable(counts)
        return summed[:, 0].clone(), summed[:, 1].clone(), counts

    @staticmethod
    def backward(ctx: Any, for_positive: Tensor, for_negative: Tensor, _: Any) -> Any:
        target, matches, chosen = ctx.saved_tensors
        images, queries, _keys = ctx.sizes
        views, channels = ctx.options["views"], ctx.options["channels"]
        inner = target.new_empty(views * images, queries, channels)
        grid = (
            len(inner),
            triton.cdiv(queries, QUERIES_AT_ONCE),
            triton.cdiv(channels, GRADIENT_CHANNELS),
        )
        _pull[grid](
            target, matches, chosen, for_positive.contiguous(), for_negative.contiguous(), inner,
            *ctx.sizes, teachers=len(target) // images, C=GRADIENT_CHANNELS, **ctx.options,
        )  # fmt: skip
        return inner, *[None] * 7


def ranking_sums(
    context: Tensor,  # (V * B, Q, D) fp32, of the student
    target: Tensor,  # (teacher views * B, K, D) fp32, without gradient
    matches: Tensor,  # (N, Q, K) bool, in the order of the terms
    *,
    images: int,
    small: bool,
    top_k: int,
    drop: int,
    spares: bool,
) -> RankingSums:
    """What the loss of every pair of views is made of."""
    positive, negative, counts = _Ranking.apply(
        context.contiguous(), target.contiguous(), matches.contiguous(), images, small, top_k, drop,
        spares,
    )  # fmt: skip
    pairs, queries, unmatched, short = counts.unbind(1)
    return RankingSums(positive, pairs, negative, queries, unmatched, short)


def _precision() -> str:
    """As torch multiplies fp32 numbers now."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _tile(keys: int) -> dict[str, int]:
    width = max(16, triton.next_power_of_2(keys))
    return {"Q": QUERIES_AT_ONCE, "K": width, "num_warps": 8 if width > 128 else 4}
