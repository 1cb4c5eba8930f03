"""Triton kernels for batch norm, ReLU and a 3 x 3 pooling of stride 2; the stem of a ResNet has it.

    forward    sums  -> moments  -> pool (read, write a quarter)
    backward   pooled_gradient_sums (read, read a quarter)  -> slopes  -> pooled_input_gradients

Steps without *pool* in their name are those of ``kernels``, where tables and tiles are explained.

A window has nine cells, counted line by line from 0; the one that won is remembered, as a byte. The
middle of a window is cell 4, and always in the map; windows at the rim lack some of the others.
``pool`` and ``pooled_input_gradients`` take *shafts*: windows one below the other. Going down, a
line that two windows share is read once, and what holds for a channel or takes a division is found
once for many lines.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from clove_ssl.layers.fused_norm.kernels import (
    affine,
    at_least_zero,
    gradient_terms,
    store_gradients,
)


@triton.jit
def _shafts(first, images, height, width, channels, chunks, channel, R: tl.constexpr):
    """The windows that a program begins with.

    Returns which of them are real, line y and column z of their middles, and where windows and
    middles lie in memory.
    """
    shaft = tl.program_id(0) // chunks * R + tl.arange(0, R)  # 32 bits: 64 take long to divide
    pooled_height, pooled_width = (height + 1) // 2, (width + 1) // 2
    column, image = shaft % pooled_width, shaft // pooled_width
    line = first + tl.zeros_like(column)
    real = (shaft < images * pooled_width)[:, None] & (channel < channels)[None, :]
    # 64 bits where channels come in, since 4096 maps of 112 x 112 x 64 have more than 2^31 values.
    window = ((image * pooled_height + line) * pooled_width + column).to(tl.int64)
    middle = ((image * height + 2 * line) * width + 2 * column).to(tl.int64)
    window = window[:, None] * channels + channel[None, :]
    middle = middle[:, None] * channels + channel[None, :]
    return real, 2 * line[:, None], 2 * column[:, None], window, middle


@triton.jit
def _three(x, middle, mask, z, width, channels):
    """Three cells side by side, as far as the map has them."""
    left = tl.load(x + middle - channels, mask=mask & (z > 0), other=0.0)
    center = tl.load(x + middle, mask=mask, other=0.0)
    right = tl.load(x + middle + channels, mask=mask & (z + 1 < width), other=0.0)
    return left.to(tl.float32), center.to(tl.float32), right.to(tl.float32)


@triton.jit
def _best_of_three(left, center, right, direction, z, width):
    """The largest of three values, of equal ones the first, and which it is."""
    best, center, right = left * direction, center * direction, right * direction
    # At the rim a value wins because it is in the map, whatever it is: even one that is no number
    # must not make a winner of a place outside, where the backward pass would read.
    better = (center > best) | (z == 0)
    best = tl.where(better, center, best)
    winner = tl.where(better, 1, 0)
    better = (right > best) & (z + 1 < width)
    return tl.where(better, right, best), tl.where(better, 2, winner)


@triton.jit(do_not_specialize=["images", "height", "width", "chunks", "lines"])
def pool(
    x,
    out,
    winners,
    mean,
    scale,
    weight,
    bias,
    images,
    height,
    width,
    chunks,
    lines,
    channels,
    AFFINE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """out = the largest of 3 x 3 values of relu(norm(x)), and which of the nine it was."""
    first = tl.program_id(0) % chunks * lines
    channel = tl.program_id(1) * C + tl.arange(0, C)
    mean, factor, shift = affine(mean, scale, weight, bias, channel, channel < channels, AFFINE)
    # A norm keeps the order of a channel's values or turns it around, so winners are found among
    # values as they are, and only they are normalised. A factor of 0 makes all of them equal.
    direction = tl.where(factor > 0, 1.0, tl.where(factor < 0, -1.0, 0.0))[None, :]
    real, y, z, window, middle = _shafts(first, images, height, width, channels, chunks, channel, R)
    left, above, right = _three(x, middle - width * channels, real & (y > 0), z, width, channels)
    best_above, winner_above = _best_of_three(left, above, right, direction, z, width)
    for _ in range(first, tl.minimum(first + lines, (height + 1) // 2)):
        # All loads come first, so that they are on their way together.
        left, center, right = _three(x, middle, real, z, width, channels)
        lower_left, below, lower_right = _three(
            x, middle + width * channels, real & (y + 1 < height), z, width, channels
        )
        best, winner = _best_of_three(left, center, right, direction, z, width)
        # Strictly, so of equal values the first of nine wins, as in torch.
        better = (best > best_above) | (y == 0)
        best = tl.where(better, best, best_above)
        winner = tl.where(better, 3 + winner, winner_above)
        # The line below is the one above the next window.
        best_above, winner_above = _best_of_three(
            lower_left, below, lower_right, direction, z, width
        )
        better = (best_above > best) & (y + 1 < height)
        best = tl.where(better, best_above, best) * direction
        winner = tl.where(better, 6 + winner_above, winner)
        # As in ``normalize``.
        value = (best - mean[None, :]) * factor[None, :] + shift[None, :]
        value = at_least_zero(value)
        tl.store(out + window, value.to(out.dtype.element_ty), mask=real)
        # Also where no value is above 0: the backward pass asks the ReLU before it asks who won.
        tl.store(winners + window, winner.to(tl.uint8), mask=real)
        y += 2
        window += (width + 1) // 2 * channels
        middle += 2 * width * channels


@triton.jit(
    do_not_specialize=["cells", "stretch", "height", "width", "pooled_height", "pooled_width"]
)
def pooled_gradient_sums(
    x,
    outer,  # gradients of what came out
    out,  # what came out
    winners,
    table,
    mean,
    cells,
    stretch,
    height,
    width,
    pooled_height,
    pooled_width,
    channels,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """The sums of ``gradient_sums``: only cells that won a window have a gradient."""
    part, first = tl.program_id(0), tl.program_id(0) * stretch
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = channel < channels
    middle = tl.load(mean + channel, mask=there, other=0.0)
    total = tl.zeros([R, C], tl.float32)
    along = tl.zeros([R, C], tl.float32)
    last = tl.minimum(first + stretch, cells)
    # Not with tiles on their way, as in ``gradient_sums``: which values are read follows from
    # others that are read, and it took twice as long.
    for start in range(first, last, R):
        cell = start + tl.arange(0, R)
        mask = (cell < last)[:, None] & there[None, :]
        at = cell.to(tl.int64)[:, None] * channels + channel[None, :]
        gradient = tl.load(outer + at, mask=mask, other=0.0).to(tl.float32)
        passed = tl.load(out + at, mask=mask, other=0.0).to(tl.float32) > 0
        gradient = tl.where(passed, gradient, 0.0)
        # 4 is the middle of a window, a place that exists for every cell, so masked loads stay
        # inside.
        winner = tl.load(winners + at, mask=mask, other=4).to(tl.int32)
        column, line = cell % pooled_width, (cell // pooled_width) % pooled_height
        image = cell // (pooled_width * pooled_height)
        # From the first cell of a window, which may lie outside, to the one that won.
        corner = ((image * height + 2 * line - 1) * width + 2 * column - 1).to(tl.int64)
        steps = (winner // 3 * width + winner % 3) * channels + channel[None, :]
        value = tl.load(x + corner[:, None] * channels + steps, mask=mask, other=0.0)
        total += gradient
        along += gradient * (value.to(tl.float32) - middle[None, :])
    at = table + part * 2 * channels + channel
    tl.store(at, tl.sum(total, 0), mask=there)
    tl.store(at + channels, tl.sum(along, 0), mask=there)


@triton.jit
def _gradient_of(window, outer, winners, mask):
    """The gradient of a window, and which of its nine cells it goes to."""
    gradient = tl.load(outer + window, mask=mask, other=0.0).to(tl.float32)
    # 255 is none of nine, so a window that does not exist gives nothing to any cell.
    return gradient, tl.load(winners + window, mask=mask, other=255)


@triton.jit(do_not_specialize=["images", "height", "width", "chunks", "lines"])
def pooled_input_gradients(
    x,
    outer,  # of what came out
    winners,
    inner,  # written
    mean,
    scale,
    weight,
    bias,
    level,
    slope,
    images,
    height,
    width,
    chunks,
    lines,
    channels,
    AFFINE: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Gradients of the input, for middles of windows and their neighbours right, below and across.

    These four cells are in four windows: the middle in its own alone, the one across in all. Each
    takes what a window gives to the place that it has there.
    """
    first = tl.program_id(0) % chunks * lines
    channel = tl.program_id(1) * C + tl.arange(0, C)
    there = channel < channels
    terms = gradient_terms(mean, scale, weight, bias, level, slope, channel, there, AFFINE)
    real, y, z, window, middle = _shafts(first, images, height, width, channels, chunks, channel, R)
    has_right, has_beside = real & (z + 1 < width), real & (z + 2 < width)
    own, own_winner = _gradient_of(window, outer, winners, real)
    beside, beside_winner = _gradient_of(window + channels, outer, winners, has_beside)
    for _ in range(first, tl.minimum(first + lines, (height + 1) // 2)):
        window += (width + 1) // 2 * channels
        right, below = middle + channels, middle + width * channels
        across = below + channels
        has_below = real & (y + 1 < height)
        has_across = has_right & has_below
        goes_on = y + 2 < height
        # All loads come first, so that they are on their way together.
        x_middle = tl.load(x + middle, mask=real, other=0.0)
        x_right = tl.load(x + right, mask=has_right, other=0.0)
        x_below = tl.load(x + below, mask=has_below, other=0.0)
        x_across = tl.load(x + across, mask=has_across, other=0.0)
        under, under_winner = _gradient_of(window, outer, winners, real & goes_on)
        far, far_winner = _gradient_of(window + channels, outer, winners, has_beside & goes_on)

        gradient = tl.where(own_winner == 4, own, 0.0)
        store_gradients(inner, middle, gradient, x_middle, terms, real, True)

        gradient = tl.where(own_winner == 5, own, 0.0) + tl.where(beside_winner == 3, beside, 0.0)
        store_gradients(inner, right, gradient, x_right, terms, has_right, True)

        gradient = tl.where(own_winner == 7, own, 0.0) + tl.where(under_winner == 1, under, 0.0)
        store_gradients(inner, below, gradient, x_below, terms, has_below, True)

        gradient = tl.where(own_winner == 8, own, 0.0) + tl.where(beside_winner == 6, beside, 0.0)
        gradient += tl.where(under_winner == 2, under, 0.0)
        gradient += tl.where(far_winner == 0, far, 0.0)
        store_gradients(inner, across, gradient, x_across, terms, has_across, True)

        # The windows below are the own and the one beside it of the line that follows.
        own, own_winner, beside, beside_winner = under, under_winner, far, far_winner
        y += 2
        middle += 2 * width * channels
