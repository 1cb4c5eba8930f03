"""RoIAlign on a GPU: all levels of a pyramid in one kernel, channels side by side.

torchvision's kernel wants maps in fp32 with whole planes behind each other, and one call per level,
for which the host must know how many regions each level has. In this one a program takes a row of
bins of one region, finds its level by itself, and reads all channels of a cell at once, in the
format and the layout that convolutions leave. Sums are made in fp32.

The backward pass adds up in any order, so it repeats itself only up to rounding.
"""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_LEVELS = 4
_CHANNELS = 256  # of a program; others work on the rest
# Sizes of maps change with every batch and must not make a kernel of their own.
_SIZES = ["h0", "w0", "h1", "w1", "h2", "w2", "h3", "w3"]


def pool_on_gpu(
    features: Sequence[Tensor],  # L x (B, C, H_l, W_l), one after the other half as large
    regions: Tensor,  # (R, 5), R > 0
    levels: Tensor | None,  # (R,) which map a region is pooled from; none where there is only one
    *,
    stride: int,  # of the first map
    size: int,
    sampling: int,
    aligned: bool,
) -> Tensor:
    """Pool regions, each from its level: (R, C, size, size) in the format of the maps."""
    levels = regions if levels is None else levels
    options = (1 / stride, size, sampling, aligned)
    return _Pooling.apply(regions.float().contiguous(), levels, options, *features)


class _Pooling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, regions, levels, options, *features):
        layout = torch.channels_last
        maps = [each.detach().contiguous(memory_format=layout) for each in features]
        scale, size, sampling, aligned = options
        shape = (len(regions), maps[0].shape[1], size, size)
        pooled = torch.empty(
            shape, dtype=maps[0].dtype, device=regions.device, memory_format=layout
        )
        _run(_pool, maps, regions, levels, pooled, options)
        ctx.save_for_backward(regions, levels)
        ctx.options, ctx.dtype = options, maps[0].dtype
        ctx.shapes = [each.shape for each in maps]
        return pooled

    @staticmethod
    def backward(ctx, gradient):
        regions, levels = ctx.saved_tensors
        layout = torch.channels_last
        sums = [
            torch.empty(shape, device=regions.device, memory_format=layout).zero_()
            for shape in ctx.shapes
        ]
        gradient = gradient.contiguous(memory_format=layout)
        _run(_spread, sums, regions, levels, gradient, ctx.options)
        return None, None, None, *(each.to(ctx.dtype) for each in sums)


def _run(kernel, maps, regions, levels, pooled, options):
    scale, size, sampling, aligned = options
    channels = maps[0].shape[1]
    block = min(triton.next_power_of_2(channels), _CHANNELS)
    all_maps = [*maps, *[maps[0]] * (MOST_LEVELS - len(maps))]
    sides = [side for each in all_maps for side in each.shape[2:]]
    grid = (len(regions) * size, triton.cdiv(channels, block))
    kernel[grid](
        *all_maps,
        regions,
        levels,
        pooled,
        *sides,
        scale,
        CHANNELS=channels,
        LEVELS=len(maps),
        SIZE=size,
        SAMPLING=sampling,
        ALIGNED=aligned,
        BLOCK=block,
        num_warps=2,
    )


@triton.jit
def _axis(start, bin_length, bin_number, sample, samples, length):
    """Where a sample lies on an axis: two cells and their shares, 0 for a sample off the map."""
    place = start + bin_number * bin_length + (sample + 0.5) * bin_length / samples
    counts = tl.where(place < -1.0, 0.0, 1.0) * tl.where(place > length, 0.0, 1.0)
    place = tl.maximum(place, 0.0)
    low = place.to(tl.int32)
    at_end = low >= length - 1
    low = tl.where(at_end, length - 1, low)
    high = tl.where(at_end, length - 1, low + 1)
    share = tl.where(at_end, 0.0, place - low)
    return low, high, (1.0 - share) * counts, share * counts


@triton.jit
def _extent(low, high, scale, SIZE: tl.constexpr, SAMPLING: tl.constexpr, ALIGNED: tl.constexpr):
    """Start of a region on an axis of the map, length of a bin, and samples in it."""
    start, end = low * scale, high * scale
    if ALIGNED:
        start -= 0.5
        end -= 0.5
        length = end - start
    else:
        length = tl.maximum(end - start, 1.0)
    bin_length = length / SIZE
    samples = SAMPLING
    if SAMPLING == 0:
        samples = tl.ceil(bin_length).to(tl.int32)
    return start, bin_length, samples


@triton.jit
def _level(level, maps, heights, widths, scale):
    """The map of a level, its sides, and how many of its cells a pixel is."""
    found, height, width = maps[0], heights[0], widths[0]
    if level == 1:
        found, height, width, scale = maps[1], heights[1], widths[1], scale * 0.5
    if level == 2:
        found, height, width, scale = maps[2], heights[2], widths[2], scale * 0.25
    if level == 3:
        found, height, width, scale = maps[3], heights[3], widths[3], scale * 0.125
    return found, height, width, scale


@triton.jit
def _region(
    region,
    maps,
    regions,
    levels,
    heights,
    widths,
    scale,
    CHANNELS: tl.constexpr,
    LEVELS: tl.constexpr,
    SIZE: tl.constexpr,
    SAMPLING: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The map of a region's image, its sides, and the region's extents across and down on it."""
    found, height, width = maps[0], heights[0], widths[0]
    if LEVELS > 1:
        level = tl.load(levels + region)
        found, height, width, scale = _level(level, maps, heights, widths, scale)
    box = regions + region * 5
    found += tl.load(box).to(tl.int64) * height * width * CHANNELS
    across = _extent(tl.load(box + 1), tl.load(box + 3), scale, SIZE, SAMPLING, ALIGNED)
    down = _extent(tl.load(box + 2), tl.load(box + 4), scale, SIZE, SAMPLING, ALIGNED)
    return found, height, width, across, down


@triton.jit
def _cells(maps, places, inside):
    return tl.load(maps + places, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=_SIZES)
def _pool(
    m0,
    m1,
    m2,
    m3,
    regions,
    levels,
    pooled,
    h0,
    w0,
    h1,
    w1,
    h2,
    w2,
    h3,
    w3,
    scale,
    CHANNELS: tl.constexpr,
    LEVELS: tl.constexpr,
    SIZE: tl.constexpr,
    SAMPLING: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pool one row of bins of a region."""
    region = tl.program_id(0) // SIZE
    row = tl.program_id(0) % SIZE
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    maps, height, width, horizontal, vertical = _region(
        region, (m0, m1, m2, m3), regions, levels, (h0, h1, h2, h3), (w0, w1, w2, w3), scale,
        CHANNELS, LEVELS, SIZE, SAMPLING, ALIGNED,
    )  # fmt: skip
    x, bin_width, across = horizontal
    y, bin_height, down = vertical
    pooled += (region.to(tl.int64) * SIZE + row) * SIZE * CHANNELS
    for column in range(SIZE):
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for i in range(down):
            top, bottom, upper, lower = _axis(y, bin_height, row, i, down, height)
            for j in range(across):
                left, right, near, far = _axis(x, bin_width, column, j, across, width)
                above = near * _cells(maps, (top * width + left) * CHANNELS + channel, inside)
                above += far * _cells(maps, (top * width + right) * CHANNELS + channel, inside)
                below = near * _cells(maps, (bottom * width + left) * CHANNELS + channel, inside)
                below += far * _cells(maps, (bottom * width + right) * CHANNELS + channel, inside)
                total += upper * above + lower * below
        mean = total / tl.maximum(down * across, 1)
        tl.store(
            pooled + column * CHANNELS + channel, mean.to(pooled.dtype.element_ty), mask=inside
        )


@triton.jit(do_not_specialize=_SIZES)
def _spread(
    m0,
    m1,
    m2,
    m3,
    regions,
    levels,
    gradient,
    h0,
    w0,
    h1,
    w1,
    h2,
    w2,
    h3,
    w3,
    scale,
    CHANNELS: tl.constexpr,
    LEVELS: tl.constexpr,
    SIZE: tl.constexpr,
    SAMPLING: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Spread the gradient of one row of bins over the cells that they were made of."""
    region = tl.program_id(0) // SIZE
    row = tl.program_id(0) % SIZE
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    maps, height, width, horizontal, vertical = _region(
        region, (m0, m1, m2, m3), regions, levels, (h0, h1, h2, h3), (w0, w1, w2, w3), scale,
        CHANNELS, LEVELS, SIZE, SAMPLING, ALIGNED,
    )  # fmt: skip
    x, bin_width, across = horizontal
    y, bin_height, down = vertical
    gradient += (region.to(tl.int64) * SIZE + row) * SIZE * CHANNELS
    last = width - 1
    for i in range(down):
        top, bottom, upper, lower = _axis(y, bin_height, row, i, down, height)
        above = maps + top * width * CHANNELS + channel
        below = maps + bottom * width * CHANNELS + channel
        # Samples go from left to right, and several lie between the same two cells. Their sums
        # wait here until a sample lies beyond a cell: additions in memory are slow.
        cell = tl.minimum(tl.maximum(x, 0.0).to(tl.int32), last)
        near_sum = tl.zeros([BLOCK], dtype=tl.float32)
        far_sum = tl.zeros([BLOCK], dtype=tl.float32)
        for column in range(SIZE):
            wanted = tl.load(gradient + column * CHANNELS + channel, mask=inside, other=0.0)
            each = wanted.to(tl.float32) / tl.maximum(down * across, 1)
            for j in range(across):
                left, right, near, far = _axis(x, bin_width, column, j, across, width)
                if left != cell:
                    _add_both(above, below, cell * CHANNELS, upper, lower, near_sum, inside)
                    is_next = left == cell + 1
                    if left != cell + 1:
                        # Beyond the last cell there is none, and its sum is 0.
                        end = tl.minimum(cell + 1, last) * CHANNELS
                        _add_both(above, below, end, upper, lower, far_sum, inside)
                    near_sum = tl.where(is_next, far_sum, 0.0)
                    far_sum = tl.zeros([BLOCK], dtype=tl.float32)
                    cell = left
                near_sum += near * each
                far_sum += far * each
        _add_both(above, below, cell * CHANNELS, upper, lower, near_sum, inside)
        end = tl.minimum(cell + 1, last) * CHANNELS
        _add_both(above, below, end, upper, lower, far_sum, inside)


@triton.jit
def _add_both(above, below, place, upper, lower, value, use):
    """Add to a cell of the upper and of the lower row."""
    _add(above + place, upper * value, use)
    _add(below + place, lower * value, use)


@triton.jit
def _add(place, value, use):
    tl.atomic_add(place, value, mask=use, sem="relaxed")
