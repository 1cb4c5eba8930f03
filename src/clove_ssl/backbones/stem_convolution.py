"""Triton kernels of the stem's 4 x 4 convolution; import only where Triton is installed.

Sixteen channels lie side by side in every cell, so for one row of taps the four cells that an
output looks at are 64 values in a row of memory: the convolution is a sum of four products of
matrices, one for each row of taps. A tile has a cell of the same line in each of many columns
(an image and a place along x), and goes down its columns: a line of pixels is then read once for
the four lines of output that it has a part in, and places are divided by sizes only once.

Where a batch norm follows, its sums are taken while values are still in registers, which saves it a
pass over the map. They are those of ``sums`` in ``fused_norm.kernels``, which explains the table.

The gradient of the taps is summed by parts into a table, which is added up in a fixed order: the
same pixels always give the same bits. Pixels get no gradient.

Dimensions: B images, H x W cells of output, D channels of output.
"""
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from clove_ssl.backbones.stem import CHANNELS
from clove_ssl.layers.fused_norm.activation import Sums

TAPS = 4  # along each side
REACH = TAPS * CHANNELS  # values that one row of taps meets; channels of output come in such blocks
BEYOND = TAPS - 1  # lines and columns that pixels have more than the output

COLUMNS = 64  # of a tile: the least that the tensor cores of Hopper take at once
DEPTH = 32  # channels of a program: as few as leave registers for three programs at once
SEGMENT = 40  # lines of a program at most; each begins with three that finish nothing
WARPS = 4
STAGES = 4  # lines that are multiplied or on their way: with two, each would be waited for

GRADIENT_COLUMNS = 32
GRADIENT_LINES = 2  # of output of a tile; the kernel has them written out
GRADIENT_STAGES = 3
PARTS = 264  # two programs for each of 132 multiprocessors


@triton.jit
def _places(column, width, lines, first, step, EACH: tl.constexpr):
    """Where values of the columns begin in line ``first`` of maps so many lines high."""
    # Divisions of 32 bits, as those of 64 take ever so long; places in memory may pass 2^31.
    image = (column // width).to(tl.int64)
    return ((image * lines + first) * step + column % width) * EACH


@triton.jit
def _line(at, line, step, lines):
    """Line ``line`` of a tile: zeros where a column has ended."""
    return tl.load(at + line * step, mask=(line < lines)[:, None], other=0.0)


@triton.jit
def _plus(cells, taps, total):
    # Without TF32: floats are only given to test the kernels, and to the last digit.
    return tl.dot(cells, taps, total, input_precision="ieee")


@triton.jit(do_not_specialize=["height", "width"])
def _lay_out(
    pixels,
    taps,  # (D, 16, 4, 4)
    rows,  # (4, 64, D), in the dtype of pixels: what autocast does for torch's convolution
    level,  # (D,)
    height,
    width,
    D: tl.constexpr,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BEYOND: tl.constexpr,
    N: tl.constexpr,
):
    """N channels of the taps as ``_convolve`` wants them, and their value at one cell as level."""
    place = tl.arange(0, TAPS * TAPS * CHANNELS)
    line, across, depth = place // (TAPS * CHANNELS), place // CHANNELS % TAPS, place % CHANNELS
    channel = tl.program_id(0) * N + tl.arange(0, N)
    within = (depth * TAPS + line) * TAPS + across
    tap = tl.load(taps + channel[None, :] * (TAPS * TAPS * CHANNELS) + within[:, None])
    tap = tap.to(rows.dtype.element_ty)
    tl.store(rows + place[:, None] * D + channel[None, :], tap)
    # In the middle of the first image: at its corner most taps would meet the border.
    cell = (height // 2 + line) * (width + BEYOND) + width // 2 + across
    cell = tl.load(pixels + cell * CHANNELS + depth).to(tl.float32)
    tl.store(level + channel, tl.sum(tap.to(tl.float32) * cell[:, None], 0))


@triton.jit
def _products(cells, taps, M: tl.constexpr, N: tl.constexpr):
    """A line of pixels times each row of taps, of which ``taps`` has four side by side."""
    # In one product: the tensor cores then read the cells once for all rows of taps.
    product = _plus(cells, taps, tl.zeros([M, 4 * N], tl.float32))
    # A thread has the same columns of all four, so nothing moves between threads.
    even, odd = tl.split(tl.permute(tl.reshape(product, (M, 2, 2, N)), (0, 3, 1, 2)))
    row_0, row_2 = tl.split(even)
    row_1, row_3 = tl.split(odd)
    return row_0, row_1, row_2, row_3


@triton.jit(do_not_specialize=["columns", "height", "width", "segment"])
def _convolve(
    pixels,
    taps,  # (4, 64, D)
    out,
    level,  # (D,), near the mean of each channel: without it, squares would drown the variance
    table,  # (parts, 2, D), written where SUMS
    columns,
    height,
    width,
    segment,
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    BEYOND: tl.constexpr,
    SUMS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """``segment`` lines of N channels of M columns, and sums of them for the norm that follows."""
    # Programs of the same cells follow each other, so that one finds pixels where another had them.
    block, tile = tl.program_id(0) % (D // N), tl.program_id(0) // (D // N)
    column = tile * M + tl.arange(0, M)
    reached = tl.arange(0, REACH)
    channel = block * N + tl.arange(0, N)
    first = tl.program_id(1) * segment
    wide, tall = width + BEYOND, height + BEYOND
    at = pixels + _places(column, width, tall, first, wide, CHANNELS)[:, None] + reached[None, :]
    to = out + _places(column, width, height, first, width, D)[:, None] + channel[None, :]
    # Lines are counted from the first of this segment; within an image, offsets fit 32 bits.
    step, stride = wide * CHANNELS, width * D
    there = column < columns
    each = tl.arange(0, 4 * N)
    each = each // N * (REACH * D) + block * N + each % N
    taps = tl.load(taps + reached[:, None] * D + each[None, :])
    level = tl.load(level + channel)
    # Of the two rows of sixteen that a thread of the tensor cores has: sums of whole tiles would
    # not fit in registers beside the products.
    total = tl.zeros([M // 16, 8, N], tl.float32)
    squares = tl.zeros([M // 16, 8, N], tl.float32)
    # Three lines of output are under way. Every line of pixels finishes one and begins another; the
    # first three lines only begin.
    oldest = tl.zeros([M, N], tl.float32)
    older = tl.zeros([M, N], tl.float32)
    newest = tl.zeros([M, N], tl.float32)
    for line in range(-BEYOND, tl.minimum(segment, height - first)):
        cells = tl.load(at + (line + BEYOND) * step, mask=there[:, None], other=0.0)
        row_0, row_1, row_2, row_3 = _products(cells, taps, M, N)
        value = (oldest + row_3).to(out.dtype.element_ty)
        real = (there & (line >= 0))[:, None]
        tl.store(to + line * stride, value, mask=real)
        if SUMS:
            # Of what was stored, since that is what the norm will read.
            value = tl.where(real, value.to(tl.float32) - level[None, :], 0.0)
            total += tl.sum(tl.reshape(value, (M // 16, 2, 8, N)), 1)
            squares += tl.sum(tl.reshape(value * value, (M // 16, 2, 8, N)), 1)
        oldest, older, newest = older + row_2, newest + row_1, row_0
    if SUMS:
        part = tl.program_id(1) * (tl.num_programs(0) // (D // N)) + tile
        total = tl.sum(tl.reshape(total, (M // 2, N)), 0)
        squares = tl.sum(tl.reshape(squares, (M // 2, N)), 0)
        tl.store(table + part * 2 * D + channel, total)
        tl.store(table + part * 2 * D + D + channel, squares)


@triton.jit(do_not_specialize=["columns", "height", "width", "blocks", "tiles", "share"])
def _tap_gradients(
    pixels,
    outer,  # gradients of what came out
    table,  # (parts, 4, 64, D)
    columns,
    height,
    width,
    blocks,  # of lines that a column has
    tiles,
    share,  # of the tiles, that a part sums
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    BEYOND: tl.constexpr,
    LINES: tl.constexpr,
    M: tl.constexpr,
):
    """Sums over a share of the tiles; a tile has two lines of output of M columns."""
    part = tl.program_id(0)
    reached = tl.arange(0, REACH)
    channel = tl.program_id(1) * REACH + tl.arange(0, REACH)
    wide, tall = width + BEYOND, height + BEYOND
    step, stride = wide * CHANNELS, width * D
    sum_0 = tl.zeros([REACH, REACH], tl.float32)
    sum_1 = tl.zeros([REACH, REACH], tl.float32)
    sum_2 = tl.zeros([REACH, REACH], tl.float32)
    sum_3 = tl.zeros([REACH, REACH], tl.float32)
    for tile in range(part * share, tl.minimum((part + 1) * share, tiles)):
        column = (tile // blocks) * M + tl.arange(0, M)
        first = (tile % blocks) * LINES
        at = pixels + _places(column, width, tall, first, wide, CHANNELS)[:, None]
        at += reached[None, :]
        of = outer + _places(column, width, height, first, width, D)[:, None] + channel[None, :]
        there = column < columns
        pixel_lines = tl.where(there, tall - first, 0)
        outer_lines = tl.where(there, height - first, 0)
        # Lines of pixels that several lines of output look at are read once.
        outer_0 = _line(of, 0, stride, outer_lines)
        outer_1 = _line(of, 1, stride, outer_lines)
        cells_0 = tl.trans(_line(at, 0, step, pixel_lines))
        cells_1 = tl.trans(_line(at, 1, step, pixel_lines))
        cells_2 = tl.trans(_line(at, 2, step, pixel_lines))
        cells_3 = tl.trans(_line(at, 3, step, pixel_lines))
        cells_4 = tl.trans(_line(at, 4, step, pixel_lines))
        sum_0 = _plus(cells_0, outer_0, sum_0)
        sum_1 = _plus(cells_1, outer_0, sum_1)
        sum_2 = _plus(cells_2, outer_0, sum_2)
        sum_3 = _plus(cells_3, outer_0, sum_3)
        sum_0 = _plus(cells_1, outer_1, sum_0)
        sum_1 = _plus(cells_2, outer_1, sum_1)
        sum_2 = _plus(cells_3, outer_1, sum_2)
        sum_3 = _plus(cells_4, outer_1, sum_3)
    to = table + part.to(tl.int64) * (4 * REACH * D) + reached[:, None] * D + channel[None, :]
    tl.store(to, sum_0)
    tl.store(to + REACH * D, sum_1)
    tl.store(to + 2 * REACH * D, sum_2)
    tl.store(to + 3 * REACH * D, sum_3)


def convolve(pixels: Tensor, taps: Tensor, *, segment: int = SEGMENT) -> Tensor:
    """(B, 16, H + 3, W + 3) and (D, 16, 4, 4) -> (B, D, H, W), both channels last, in one dtype."""
    return _launch(pixels, taps, segment, takes_sums=False)[0]


def convolve_and_sum(
    pixels: Tensor, taps: Tensor, *, segment: int = SEGMENT
) -> tuple[Tensor, Sums]:
    """The same, and sums over all cells for the norm that follows."""
    out, table, level = _launch(pixels, taps, segment, takes_sums=True)
    return out, Sums(table, level)


def _launch(
    pixels: Tensor, taps: Tensor, segment: int, *, takes_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the sums with their level; without sums the table is never written."""
    count, _, tall, wide = pixels.shape
    height, width, depth = tall - BEYOND, wide - BEYOND, len(taps)
    rows = pixels.new_empty((TAPS, REACH, depth))
    level = pixels.new_empty(depth, dtype=torch.float32)
    _lay_out[(depth // DEPTH,)](
        pixels, taps.contiguous(), rows, level, height, width, D=depth, TAPS=TAPS,
        CHANNELS=CHANNELS, BEYOND=BEYOND, N=DEPTH,
    )  # fmt: skip
    out = torch.empty(
        (count, depth, height, width),
        dtype=pixels.dtype,
        device=pixels.device,
        memory_format=torch.channels_last,
    )
    # Segments of about the same length, so that none is left over with a few lines.
    segments = triton.cdiv(height, segment)
    tiles = triton.cdiv(count * width, COLUMNS)
    # Uninitialised: every program writes its sums. From the shapes alone, as in ``tap_gradients``.
    table = level.new_empty((tiles * segments, 2, depth) if takes_sums else (0, 2, depth))
    _convolve[(tiles * (depth // DEPTH), segments)](
        pixels, rows, out, level, table, count * width, height, width,
        triton.cdiv(height, segments), D=depth, CHANNELS=CHANNELS, REACH=REACH, BEYOND=BEYOND,
        SUMS=takes_sums, M=COLUMNS, N=DEPTH, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out, table, level


def tap_gradients(pixels: Tensor, outer: Tensor, *, parts: int = PARTS) -> Tensor:
    """(B, 16, H + 3, W + 3) and (B, D, H, W), both channels last -> (D, 16, 4, 4) as floats."""
    count, depth, height, width = outer.shape
    blocks = triton.cdiv(height, GRADIENT_LINES)
    tiles = blocks * triton.cdiv(count * width, GRADIENT_COLUMNS)
    # From the shapes alone: on any GPU, and however busy it is, sums are made in the same order.
    share = triton.cdiv(tiles, parts)
    # Uninitialised: every part writes all of its sums.
    table = pixels.new_empty(
        (triton.cdiv(tiles, share), TAPS, TAPS, CHANNELS, depth), dtype=torch.float32
    )
    _tap_gradients[(len(table), depth // REACH)](
        pixels, outer, table, count * width, height, width, blocks, tiles, share, D=depth,
        CHANNELS=CHANNELS, REACH=REACH, BEYOND=BEYOND, LINES=GRADIENT_LINES, M=GRADIENT_COLUMNS,
        num_warps=WARPS, num_stages=GRADIENT_STAGES,
    )  # fmt: skip
    return table.sum(0).permute(3, 2, 0, 1)


class StemConvolution(torch.autograd.Function):
    """The convolution of pixels, which need no gradient, with taps, which get one."""

    @staticmethod
    def forward(
        ctx: Any, pixels: Tensor, taps: Tensor, takes_sums: bool
    ) -> tuple[Tensor, Sums | None]:
        ctx.save_for_backward(pixels)
        ctx.dtype = taps.dtype
        # Autograd passes sums by, as they come in no plain tensors: the norm that they are for has
        # their gradients in those of the map.
        return convolve_and_sum(pixels, taps) if takes_sums else (convolve(pixels, taps), None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor, _: None) -> tuple[None, Tensor, None]:
        (pixels,) = ctx.saved_tensors
        # Autograd may hand over a gradient that is expanded or laid out otherwise, such as that of
        # a mean.
        outer = outer.contiguous(memory_format=torch.channels_last)
        return None, tap_gradients(pixels, outer).to(ctx.dtype), None
