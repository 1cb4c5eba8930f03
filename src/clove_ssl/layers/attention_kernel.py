"""Triton kernels for attention over few cells; import only where Triton is installed.

Kernels for long sequences walk through tiles of 128 x 128 scores, add up gradients of queries with
atomic operations or in turns, and convert them in kernels of their own. The cells of a small map
all fit into one program: it holds the scores of one head of one image in its registers, and writes
every gradient once, so the same input gives the same bits.

Heads may lie anywhere as long as the channels of a cell lie side by side, as they do in a
projection that makes queries, keys and values at once. What is written lies as (B, L, H, C), so
that the cells of all heads are joined again without a copy.

The *level* of a query is the logarithm of the sum of its exponentiated scores, both to base 2, for
which a GPU has an instruction: a weight is 2 to the power of a score less its level.

Dimensions: B images, H heads, L cells, C channels of a head; in a kernel Q query cells at once, K
key cells, padded.
"""
# mypy: ignore-errors

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_CELLS = 128  # more scores do not fit into the registers of a program
MOST_VALUES = 128 * 64  # of the padded cells of a head: their gradients stay in registers, too
CHANNELS = (16, 32, 64, 128)
SMALLEST_TILE = 16  # tensor cores take no smaller one
MANY_VALUES = 128 * 32  # of a head, above which a program gets more warps


class Launch(NamedTuple):
    """How a program goes about its work."""

    rows: int  # query cells at once, at least SMALLEST_TILE
    warps: int


# By the padded number of key cells. The backward pass splits these among the warps, and their
# gradients stay there. With 64 queries at once 8 warps get by with 128 registers for each thread,
# so that two programs share a multiprocessor; with 128 at once they would not.
FORWARD = {16: Launch(16, 1), 32: Launch(32, 1), 64: Launch(64, 4), 128: Launch(64, 4)}
BACKWARD = {16: Launch(16, 1), 32: Launch(32, 2), 64: Launch(64, 4), 128: Launch(64, 8)}

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _read(start, cell, cells, cell_stride, C: tl.constexpr):
    """Cells of a head, and zeros in the place of those it does not have: [cells, C]."""
    at = cell[:, None] * cell_stride + tl.arange(0, C)[None, :]
    return tl.load(start + at, mask=(cell < cells)[:, None], other=0.0)


@triton.jit
def _write(out, value, cell, cells, image, head, heads, C: tl.constexpr):
    """The other way round, into memory that lies as (B, L, H, C)."""
    start = out + (image * cells * heads + head) * C
    at = cell[:, None] * (heads * C) + tl.arange(0, C)[None, :]
    tl.store(start + at, value.to(out.dtype.element_ty), mask=(cell < cells)[:, None])


@triton.jit(do_not_specialize=["heads", "blocks", "query_cells", "key_cells"])
def _attend(
    queries,
    keys,
    values,
    mixed,
    levels,
    heads,
    blocks,
    query_cells,
    key_cells,
    query_image_stride,
    query_head_stride,
    query_cell_stride,
    key_image_stride,
    key_head_stride,
    key_cell_stride,
    value_image_stride,
    value_head_stride,
    value_cell_stride,
    C: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
):
    """Some queries of a head: values, weighted by the softmax of products."""
    # Blocks of a head one after the other, and heads of an image: their lines are still in a cache.
    program = tl.program_id(0)
    block, place = program % blocks, program // blocks
    head = place % heads
    # 64 bits, since images times cells times channels may pass 2^31.
    image = (place // heads).to(tl.int64)
    row, column = block * Q + tl.arange(0, Q), tl.arange(0, K)
    queries += image * query_image_stride + head * query_head_stride
    keys += image * key_image_stride + head * key_head_stride
    values += image * value_image_stride + head * value_head_stride
    query = _read(queries, row, query_cells, query_cell_stride, C)
    key = _read(keys, column, key_cells, key_cell_stride, C)
    value = _read(values, column, key_cells, value_cell_stride, C)
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * LOG2_E
    # Cells that only fill up the tile get no weight. Queries that do are not written.
    score = tl.where((column < key_cells)[None, :], score, float("-inf"))
    largest = tl.max(score, 1)
    part = tl.exp2(score - largest[:, None])
    total = tl.sum(part, 1)
    mix = tl.dot(part.to(value.dtype), value, input_precision="ieee")
    # Scaled last, and not divided: C products for each query instead of K slow divisions.
    _write(mixed, mix * (1.0 / total)[:, None], row, query_cells, image, head, heads, C)
    levels += (image * heads + head) * query_cells
    tl.store(levels + row, largest + tl.log2(total), mask=row < query_cells)


@triton.jit(do_not_specialize=["heads", "query_cells", "key_cells"])
def _attend_back(
    gradient,
    mixed,
    levels,
    queries,
    keys,
    values,
    for_queries,
    for_keys,
    for_values,
    heads,
    query_cells,
    key_cells,
    gradient_image_stride,
    gradient_head_stride,
    gradient_cell_stride,
    query_image_stride,
    query_head_stride,
    query_cell_stride,
    key_image_stride,
    key_head_stride,
    key_cell_stride,
    value_image_stride,
    value_head_stride,
    value_cell_stride,
    C: tl.constexpr,
    Q: tl.constexpr,
    K: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Gradients of queries, keys and values of a whole head."""
    place = tl.program_id(0)
    head = place % heads
    image = (place // heads).to(tl.int64)
    column = tl.arange(0, K)
    gradient += image * gradient_image_stride + head * gradient_head_stride
    queries += image * query_image_stride + head * query_head_stride
    keys += image * key_image_stride + head * key_head_stride
    values += image * value_image_stride + head * value_head_stride
    mixed += (image * query_cells * heads + head) * C
    levels += (image * heads + head) * query_cells
    key = _read(keys, column, key_cells, key_cell_stride, C)
    value = _read(values, column, key_cells, value_cell_stride, C)
    for_key = tl.zeros([K, C], tl.float32)
    for_value = tl.zeros([K, C], tl.float32)
    # Some queries at a time leave room in the registers for the sums. Their order is fixed.
    for block in tl.static_range(BLOCKS):
        row = block * Q + tl.arange(0, Q)
        query = _read(queries, row, query_cells, query_cell_stride, C)
        pull = _read(gradient, row, query_cells, gradient_cell_stride, C)
        mix = _read(mixed, row, query_cells, heads * C, C)
        level = tl.load(levels + row, mask=row < query_cells, other=0.0)
        # Weights of a query sum to 1, so what pulls at all of them alike moves no score.
        alike = tl.sum(pull.to(tl.float32) * mix.to(tl.float32), 1)
        # Tables have a row for each key, [K, Q]: two of the three products that follow take them
        # straight from the registers. Queries that only fill up the tile have weights, but pull at
        # nothing; keys that do could have infinite ones.
        score = tl.dot(key, tl.trans(query), input_precision="ieee") * LOG2_E
        weight = tl.exp2(score - level[None, :])
        weight = tl.where((column < key_cells)[:, None], weight, 0.0)
        for_value = tl.dot(weight.to(pull.dtype), pull, for_value, input_precision="ieee")
        for_weight = tl.dot(value, tl.trans(pull), input_precision="ieee")
        for_score = (weight * (for_weight - alike[None, :])).to(query.dtype)
        for_key = tl.dot(for_score, query, for_key, input_precision="ieee")
        for_query = tl.dot(tl.trans(for_score), key, input_precision="ieee")
        _write(for_queries, for_query, row, query_cells, image, head, heads, C)
    _write(for_keys, for_key, column, key_cells, image, head, heads, C)
    _write(for_values, for_value, column, key_cells, image, head, heads, C)


class FewCells(torch.autograd.Function):
    """Values mixed by the softmax of products, all (B, H, L, C)."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        mixed, levels = forward(queries, keys, values)
        ctx.save_for_backward(mixed, levels, queries, keys, values)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return backward(gradient, *ctx.saved_tensors)


def fits(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether heads are small enough and lie in memory as said above."""
    heads = (queries, keys, values)
    if any(each.ndim != 4 or each.stride(-1) != 1 or not each.numel() for each in heads):
        return False
    (*outer, query_cells, channels), (*key_outer, key_cells, _) = queries.shape, keys.shape
    return (
        keys.shape == values.shape
        and outer == key_outer
        and channels == keys.shape[-1]
        and channels in CHANNELS
        and max(query_cells, key_cells) <= MOST_CELLS
        and _padded(key_cells) * channels <= MOST_VALUES
    )


def forward(
    queries: Tensor, keys: Tensor, values: Tensor, *, launch: Launch | None = None
) -> tuple[Tensor, Tensor]:
    """Mixed values, (B, H, L, C), and the levels of queries, (B, H, L) fp32."""
    images, heads, cells, channels = queries.shape
    width = _padded(keys.shape[2])
    chosen = launch or _widened(FORWARD[width], width * channels)
    rows = min(chosen.rows, _padded(cells))
    blocks = triton.cdiv(cells, rows)
    mixed = _lying_by_cells(queries)
    levels = queries.new_empty(images, heads, cells, dtype=torch.float32)
    _attend[(blocks * images * heads,)](
        queries, keys, values, mixed, levels, heads, blocks, cells, keys.shape[2],
        *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        C=channels, Q=rows, K=width, num_warps=chosen.warps, num_stages=1,
    )  # fmt: skip
    return mixed, levels


def backward(
    gradient: Tensor,
    mixed: Tensor,  # and the levels as the forward pass left them
    levels: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    launch: Launch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values from that of what was mixed, all (B, H, L, C)."""
    images, heads, cells, channels = queries.shape
    width = _padded(keys.shape[2])
    chosen = launch or _widened(BACKWARD[width], width * channels)
    rows = min(chosen.rows, _padded(cells))
    if gradient.stride(-1) != 1:  # that of a sum is a single number for all
        gradient = gradient.contiguous()
    found = _lying_by_cells(queries), _lying_by_cells(keys), _lying_by_cells(values)
    _attend_back[(images * heads,)](
        gradient, mixed, levels, queries, keys, values, *found, heads, cells, keys.shape[2],
        *gradient.stride()[:3], *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
        C=channels, Q=rows, K=width, BLOCKS=triton.cdiv(cells, rows),
        num_warps=chosen.warps, num_stages=1,
    )  # fmt: skip
    return found


def _padded(cells: int) -> int:
    return max(SMALLEST_TILE, triton.next_power_of_2(cells))


def _widened(launch: Launch, values: int) -> Launch:
    """More warps for heads of many channels, so that each thread holds as much as with few."""
    return launch._replace(warps=8) if values > MANY_VALUES else launch


def _lying_by_cells(heads: Tensor) -> Tensor:
    """New memory for (B, H, L, C) that lies as (B, L, H, C)."""
    images, count, cells, channels = heads.shape
    return heads.new_empty(images, cells, count, channels).transpose(1, 2)
