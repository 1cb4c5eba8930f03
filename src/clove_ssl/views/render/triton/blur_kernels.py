"""Triton kernels that blur the views of a group; import only where Triton is installed.

Pixels come from ``colour`` in ``kernels.py``, whose docstring says how all kernels work.

    blur_weights    small matrices, as ``blur_bands`` has them        float32
    blur_across     rows of the views that are blurred                float16
    blur_down       their columns, after which they are done
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from clove_ssl.views.render.triton import parts

# By name, because Triton does not notice a change of constants that are looked up in a module.
from clove_ssl.views.render.triton.parts import AMOUNTS, COUNTS, REACH, SOLARIZE_FROM

_BOX_PASSES = tl.constexpr(3)
_SHARPEST = tl.constexpr(1e-3)  # as in ``blur_bands.py``


@triton.jit(do_not_specialize=["side"])
def blur_weights(
    bands,  # (blurred views, side, side)
    sigma,  # (blurred views,) in 64 bits
    blurred,  # (blurred views,) their places among all views
    counts,
    side,
    GAUSSIAN: tl.constexpr,
    SIDE: tl.constexpr,  # at least ``side``
):
    """The small matrix of one view; ``blur_bands.py`` explains it, and is what this must equal."""
    blur_row = tl.program_id(0)
    reach = tl.load(counts + tl.load(blurred + blur_row) * COUNTS + REACH)
    pixel = tl.arange(0, SIDE)
    rows = pixel[:, None]
    columns = pixel[None, :]
    if GAUSSIAN:
        width = tl.maximum(tl.load(sigma + blur_row), _SHARPEST).to(tl.float32)
        matrix = _with_repeated_edges(rows, columns, side, reach, width, GAUSSIAN)
    else:
        reach = reach // _BOX_PASSES
        partial = _partial_pixel(tl.load(sigma + blur_row), reach)
        box = _with_repeated_edges(rows, columns, side, reach, partial, GAUSSIAN)
        matrix = tl.dot(box, box, input_precision="ieee")
        matrix = tl.dot(matrix, box, input_precision="ieee")
    into = bands + blur_row.to(tl.int64) * (side * side) + (rows * side + columns)
    tl.store(into, matrix, mask=(rows < side) & (columns < side))


@triton.jit
def _partial_pixel(sigma, reach):
    """Weight of the pixels at either end of a box, of which those between them weigh 1."""
    # In 64 bits, as differences of like numbers.
    variance = sigma * sigma / _BOX_PASSES
    whole = (reach - 1).to(tl.float64)
    partial = (2 * whole + 1) * (variance - whole * (whole + 1) / 3)
    return (partial / (2 * (reach * reach - variance))).to(tl.float32)


@triton.jit
def _with_repeated_edges(rows, columns, side, reach, shape, GAUSSIAN: tl.constexpr):
    """A matrix that applies a kernel; ``shape`` is the width of a Gaussian or the end of a box."""
    matrix = tl.zeros((rows.shape[0], columns.shape[1]), dtype=tl.float32)
    total = 0.0
    for offset in range(-reach, reach + 1):
        if GAUSSIAN:
            distance = offset / shape
            weight = tl.exp(-0.5 * distance * distance)
        else:
            weight = tl.where(tl.abs(offset) < reach, 1.0, shape)
        # Offsets that would end beyond the axis end on its last pixel. None ends on a column
        # from ``side`` on: those stay 0 and take no part in products.
        source = tl.minimum(tl.maximum(rows + offset, 0), side - 1)
        matrix += tl.where(source == columns, weight, 0.0)
        total += weight
    return matrix * (1.0 / total)


@triton.jit(do_not_specialize=["side"])
def blur_across(
    coloured,
    across,  # (blurred views, 3, size, size)
    bands,  # (blurred views, side, side)
    blurred,  # (blurred views,) their places among all views
    counts,
    size,
    side,
    TAPS: tl.constexpr,  # that are added up at once
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Blur the rows of the views that are blurred."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(size, ROWS)
    blur_row, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    rows = first_row + tl.arange(0, ROWS)
    columns = parts.lanes_along(first_column, COLUMNS)
    area = size * size
    view_start = blur_row.to(tl.int64) * (3 * area)
    reach = tl.load(counts + tl.load(blurred + blur_row) * COUNTS + REACH)
    taps = tl.minimum(2 * reach + 1, size)
    start, row, column = _windows(columns, reach, taps, size, side)
    weights = bands + blur_row.to(tl.int64) * (side * side) + row * side
    lines = tl.minimum(rows, size - 1) * size
    pixels = coloured + view_start + (lines[:, None] + start[None, :])
    # As far as this view's blur reaches, however wide the others of the group are.
    red, green, blue = _weighted_sums(pixels, 1, area, weights, column, side, taps, 0, TAPS)
    into = across + view_start + (rows[:, None] * size + columns[None, :])
    inside = (rows < size)[:, None] & (columns < size)[None, :]
    parts.store(into, area, red, green, blue, inside)


@triton.jit(do_not_specialize=["side"])
def blur_down(
    across,
    views,  # (views, 3, size, size) with steps of their own
    bands,
    blurred,
    counts,
    amounts,
    size,
    side,
    next_pixel,
    next_channel,
    TAPS: tl.constexpr,  # that are added up at once
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Blur the columns of the views that are blurred, solarise and normalise them."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(size, ROWS)
    blur_row, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    rows = first_row + tl.arange(0, ROWS)
    columns = first_column + tl.arange(0, COLUMNS)
    area = size * size
    view = tl.load(blurred + blur_row)
    reach = tl.load(counts + view * COUNTS + REACH)
    taps = tl.minimum(2 * reach + 1, size)
    start, row, column = _windows(rows, reach, taps, size, side)
    weights = bands + blur_row.to(tl.int64) * (side * side) + row * side
    pixels = across + blur_row.to(tl.int64) * (3 * area)
    pixels += start[:, None] * size + columns[None, :]
    red, green, blue = _weighted_sums(pixels, size, area, weights, column, side, taps, 1, TAPS)
    inside = (rows < size)[:, None] & (columns < size)[None, :]
    solarize_from = tl.load(amounts + view * AMOUNTS + SOLARIZE_FROM)
    pixels_of_view = rows[:, None] * size + columns[None, :]
    into = views + view.to(tl.int64) * (3 * area) + pixels_of_view * next_pixel
    parts.store_view(into, next_channel, red, green, blue, solarize_from, inside)


@triton.jit
def _windows(pixels, reach, taps, size, side):
    """Stretches of ``taps`` pixels that some pixels are blurred from, inside the view.

    Returns where they start, and the rows and columns of the small matrix at which the
    weights of these first pixels are. The small matrix (side, side) stands for
    (size, size): between its first and last rows, those of the borders, its middle row
    repeats.
    """
    pixels = tl.minimum(pixels, size - 1)  # a tile may be larger than the view
    start = parts.moved_inside(pixels - reach, size, taps)
    # Pixels up to the middle row have a row of their own, and so have the last ones, counted from
    # the end; all between them use the middle row.
    shift = tl.minimum(tl.maximum(pixels - side // 2, 0), size - side)
    return start, pixels - shift, start - shift


@triton.jit
def _weighted_sums(
    pixels,  # the first of every window
    next_tap,  # steps between the pixels of a window, and between channels
    next_channel,
    weights,  # rows of the small matrix, and the columns at which windows start
    column,
    side,
    taps,
    AXIS: tl.constexpr,  # along which all pixels of a tile have the same weights
    TAPS: tl.constexpr,  # that are added up at once
):
    """Add up the pixels of every window, weighted."""
    red, green, blue = parts.black(pixels)
    whole = taps // TAPS * TAPS
    for first_tap in range(0, whole, TAPS):
        for tap in tl.static_range(TAPS):
            weight = _weights(weights, column + (first_tap + tap), side, AXIS)
            at = pixels + tap * next_tap
            red, green, blue = parts.add_weighted(red, green, blue, weight, at, next_channel)
        pixels += TAPS * next_tap
    for tap in range(whole, taps):
        weight = _weights(weights, column + tap, side, AXIS)
        red, green, blue = parts.add_weighted(red, green, blue, weight, pixels, next_channel)
        pixels += next_tap
    return red, green, blue


@triton.jit
def _weights(weights, column, side, AXIS: tl.constexpr):
    """Weights in some columns of the small matrix, beyond which they are 0."""
    known = (column >= 0) & (column < side)
    return tl.expand_dims(tl.load(weights + column, mask=known, other=0.0), AXIS)
