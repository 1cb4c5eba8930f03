"""Triton kernels of the stem's 4 x 4 convolution; import only where Triton is installed.

Sixteen channels lie side by side in every cell, so for one row of taps the four cells that an
output looks at are 64 values in a row of memory: the convolution is a sum of four products of
matrices, one for each row of taps. A tile has a cell of the same line in each of many columns
(an image and a place along x), and goes down its columns: a line of pixels is then read once for
the four lines of output that it has a part in, and places are divided by sizes only once.

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

TAPS = 4  # along each side
REACH = TAPS * CHANNELS  # values that one row of taps meets; also channels of output of a program
BEYOND = TAPS - 1  # lines and columns that pixels have more than the output

COLUMNS = 64  # of a tile: the least that the tensor cores of Hopper take at once
SEGMENT = 40  # lines of a program at most; each begins with three that finish nothing
WARPS = 4
STAGES = 2  # of lines on their way: three would leave room for one program, instead of two

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
def _keep(at, line, step, lines, value):
    """Store a line of a tile, where columns have not ended."""
    value = value.to(at.dtype.element_ty)
    tl.store(at + line * step, value, mask=(line < lines)[:, None])


@triton.jit
def _plus(cells, taps, total):
    # Without TF32: floats are only given to test the kernels, and to the last digit.
    return tl.dot(cells, taps, total, input_precision="ieee")


@triton.jit
def _turn(cells, taps_0, taps_1, taps_2, taps_3, oldest, older, newer, none):
    """What a line of pixels gives to the four lines of output that look at it."""
    oldest = _plus(cells, taps_3, oldest)
    older = _plus(cells, taps_2, older)
    newer = _plus(cells, taps_1, newer)
    return oldest, older, newer, _plus(cells, taps_0, none)


@triton.jit(do_not_specialize=["columns", "height", "width", "segment"])
def _convolve(
    pixels,
    taps,  # (4, 64, D)
    out,
    columns,
    height,
    width,
    segment,
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    REACH: tl.constexpr,
    BEYOND: tl.constexpr,
    M: tl.constexpr,
):
    """``segment`` lines of output of M columns, a multiple of four."""
    column = tl.program_id(0) * M + tl.arange(0, M)
    reached = tl.arange(0, REACH)
    channel = tl.program_id(2) * REACH + tl.arange(0, REACH)
    first = tl.program_id(1) * segment
    wide, tall = width + BEYOND, height + BEYOND
    at = pixels + _places(column, width, tall, first, wide, CHANNELS)[:, None]
    at += reached[None, :]
    to = out + _places(column, width, height, first, width, D)[:, None] + channel[None, :]
    # Lines are counted from the first of this segment; within an image, offsets fit 32 bits.
    there = column < columns
    pixel_lines = tl.where(there, tall - first, 0)
    lines = tl.where(there, height - first, 0)
    step, stride = wide * CHANNELS, width * D
    tap = taps + reached[:, None] * D + channel[None, :]
    taps_0 = tl.load(tap)
    taps_1 = tl.load(tap + REACH * D)
    taps_2 = tl.load(tap + 2 * REACH * D)
    taps_3 = tl.load(tap + 3 * REACH * D)
    none = tl.zeros([M, REACH], tl.float32)
    # Lines of output have a sum each, four of which are under way. The first three lines of pixels
    # finish none of them.
    cells = _line(at, 0, step, pixel_lines)
    sum_0 = _plus(cells, taps_0, none)
    cells = _line(at, 1, step, pixel_lines)
    sum_0 = _plus(cells, taps_1, sum_0)
    sum_1 = _plus(cells, taps_0, none)
    cells = _line(at, 2, step, pixel_lines)
    sum_0 = _plus(cells, taps_2, sum_0)
    sum_1 = _plus(cells, taps_1, sum_1)
    sum_2 = _plus(cells, taps_0, none)
    # From now on every line of pixels finishes a line of output and begins another. Four turns are
    # written out, after which every sum is in its own place again: sums that changed places in
    # every turn would make the assembler wait for each single instruction of a product.
    for line in range(0, tl.minimum(segment, height - first), 4):
        cells = _line(at, line + 3, step, pixel_lines)
        sum_0, sum_1, sum_2, sum_3 = _turn(
            cells, taps_0, taps_1, taps_2, taps_3, sum_0, sum_1, sum_2, none
        )
        _keep(to, line, stride, lines, sum_0)
        cells = _line(at, line + 4, step, pixel_lines)
        sum_1, sum_2, sum_3, sum_0 = _turn(
            cells, taps_0, taps_1, taps_2, taps_3, sum_1, sum_2, sum_3, none
        )
        _keep(to, line + 1, stride, lines, sum_1)
        cells = _line(at, line + 5, step, pixel_lines)
        sum_2, sum_3, sum_0, sum_1 = _turn(
            cells, taps_0, taps_1, taps_2, taps_3, sum_2, sum_3, sum_0, none
        )
        _keep(to, line + 2, stride, lines, sum_2)
        cells = _line(at, line + 6, step, pixel_lines)
        sum_3, sum_0, sum_1, sum_2 = _turn(
            cells, taps_0, taps_1, taps_2, taps_3, sum_3, sum_0, sum_1, none
        )
        _keep(to, line + 3, stride, lines, sum_3)


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
    count, _, tall, wide = pixels.shape
    height, width, depth = tall - BEYOND, wide - BEYOND, len(taps)
    # (4, 64, D), as the kernel wants them; the cast is what autocast does for torch's convolution.
    rows = taps.permute(2, 3, 1, 0).to(pixels.dtype).contiguous()
    out = torch.empty(
        (count, depth, height, width),
        dtype=pixels.dtype,
        device=pixels.device,
        memory_format=torch.channels_last,
    )
    # Segments of about the same length, so that none is left over with a few lines.
    lines = triton.cdiv(triton.cdiv(height, triton.cdiv(height, segment)), 4) * 4
    grid = (triton.cdiv(count * width, COLUMNS), triton.cdiv(height, lines), depth // REACH)
    _convolve[grid](
        pixels, rows, out, count * width, height, width, lines, D=depth, CHANNELS=CHANNELS,
        REACH=REACH, BEYOND=BEYOND, M=COLUMNS, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


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
    def forward(ctx: Any, pixels: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(pixels)
        ctx.dtype = taps.dtype
        return convolve(pixels, taps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[None, Tensor]:
        (pixels,) = ctx.saved_tensors
        # Autograd may hand over a gradient that is expanded or laid out otherwise, such as that of
        # a mean.
        outer = outer.contiguous(memory_format=torch.channels_last)
        return None, tap_gradients(pixels, outer).to(ctx.dtype)
