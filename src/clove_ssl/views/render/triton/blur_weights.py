"""The kernel that makes the weights of blurs; import only where Triton is installed.

torch takes fifty operations for them, of which each is over before the host has started the next.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

# By name, because Triton does not notice a change of constants that are looked up in a module.
from clove_ssl.views.render.triton.parts import COUNTS, REACH

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
