"""The masks of regions on a GPU: one kernel instead of a hundred small operations and a wait.

A program draws the mask of one region. It keeps a column of pixels as the bits of a number: where
an edge passes a column, all pixels below change between outside and inside. A closed outline passes
every column an even number of times, so what happens in one column stays in it.

The numbers are those of ``polygons.py``, rounding by rounding, since they decide single pixels: a
product and a sum must not be made in one step, and quotients are rounded to the nearest number.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_EDGES = 32  # that a program looks at together


def draw_masks(
    corners: Tensor,  # (V, 2) float64
    following: Tensor,  # (V,) int64
    polygon: Tensor,  # (V,) int64
    object_sizes: Tensor,  # (2, G) int64
    objects: Tensor,  # (R,) int64
    boxes: Tensor,  # (R, 4) float32; rows may lie apart
    *,
    size: int,
    finer: int,
    smallest_side: float,
) -> Tensor:
    """The part of an object inside a box, stretched to ``size x size``: (R, size, size) bool."""
    # Bytes: a boolean of Triton has one bit, torch's has eight.
    masks = torch.empty((len(boxes), size, size), dtype=torch.int8, device=boxes.device)
    if len(boxes) == 0:
        return masks.view(torch.bool)
    _draw[(len(boxes),)](
        corners,
        following,
        polygon,
        object_sizes.contiguous(),
        object_sizes[0].cumsum(0),
        objects,
        boxes,
        masks,
        object_sizes.shape[1],
        boxes.stride(0),
        SIZE=size,
        COLUMNS=triton.next_power_of_2(size),
        EDGES=_EDGES,
        FINER=finer,
        SMALLEST=smallest_side,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return masks.view(torch.bool)


@triton.jit
def _differ(one, other):
    return one ^ other


@triton.jit
def _cut(value):
    """Towards 0, as a conversion to int in C does."""
    return tl.where(value < 0, tl.ceil(value), tl.floor(value))


@triton.jit
def _on_grid(corner, low, scale, FINER: tl.constexpr):
    """A coordinate on the finer grid of a box."""
    # Both are fp32, and meet corners of fp64.
    return _cut((corner - low.to(tl.float64)) * scale.to(tl.float64) * FINER + 0.5)


@triton.jit
def _scale(low, high, SIZE: tl.constexpr, SMALLEST: tl.constexpr):
    """Pixels of the mask for a pixel of the image, as torch divides a number by a tensor."""
    return tl.div_rn(1.0, tl.maximum(high - low, SMALLEST)) * SIZE


@triton.jit
def _heights(x0, y0, x1, y1, place):
    """The lower y of the two points around the centre of a column; see ``polygons._heights``."""
    steep = tl.abs(x1 - x0) < tl.abs(y1 - y0)
    # Along and across the longer axis instead of x and y, from the lower end.
    along0, across0 = tl.where(steep, y0, x0), tl.where(steep, x0, y0)
    along1, across1 = tl.where(steep, y1, x1), tl.where(steep, x1, y1)
    backwards = along0 > along1
    along, across = tl.where(backwards, along1, along0), tl.where(backwards, across1, across0)
    length = tl.where(backwards, along0, along1) - along
    rise = tl.where(backwards, across0, across1) - across
    slope = rise / tl.maximum(length, 1.0)
    flat = place - along
    lower = tl.minimum(_cut(across + slope * flat + 0.5), _cut(across + slope * (flat + 1.0) + 0.5))
    # An edge without a slope that is steep passes no column.
    guess = tl.floor((place + 0.5 - across) / tl.where(slope == 0.0, 1.0, slope))
    rises = slope > 0.0
    here = (_cut(across + slope * guess + 0.5) > place) == rises
    beyond = (_cut(across + slope * (guess + 1.0) + 0.5) > place) == rises
    passed = here.to(tl.float64) + beyond.to(tl.float64)
    return tl.where(steep, along + (guess + 1.0 - passed), lower)


@triton.jit(do_not_specialize=["all_objects", "box_stride"])
def _draw(
    corners,
    following,
    polygon,
    object_sizes,
    ends,
    objects,
    boxes,
    masks,
    all_objects,
    box_stride,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    EDGES: tl.constexpr,
    FINER: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    """Draw the union of the polygons of one object."""
    region = tl.program_id(0).to(tl.int64)
    own = tl.load(objects + region)
    last = tl.load(ends + own)
    start = last - tl.load(object_sizes + own)
    box = boxes + region * box_stride
    left, top = tl.load(box), tl.load(box + 1)
    across = _scale(left, tl.load(box + 2), SIZE, SMALLEST)
    down = _scale(top, tl.load(box + 3), SIZE, SMALLEST)
    column = tl.arange(0, COLUMNS)
    # The centre of a column lies between this place of the finer grid and the next one.
    place = (FINER * column + 2).to(tl.float64)[None, :]
    union = tl.zeros([COLUMNS], dtype=tl.int64)
    polygons = tl.load(object_sizes + all_objects + own).to(tl.int32)
    for number in range(polygons):
        inside = tl.zeros([COLUMNS], dtype=tl.int64)
        found = EDGES
        while found == EDGES:  # a polygon ends where fewer edges are left
            edge = start + tl.arange(0, EDGES)
            use = edge < last
            use &= tl.load(polygon + edge, mask=use, other=-1) == number
            other = edge + tl.load(following + edge, mask=use, other=0)
            x0 = _on_grid(tl.load(corners + 2 * edge, mask=use, other=0.0), left, across, FINER)
            y0 = _on_grid(tl.load(corners + 2 * edge + 1, mask=use, other=0.0), top, down, FINER)
            x1 = _on_grid(tl.load(corners + 2 * other, mask=use, other=0.0), left, across, FINER)
            y1 = _on_grid(tl.load(corners + 2 * other + 1, mask=use, other=0.0), top, down, FINER)
            low, high = tl.minimum(x0, x1)[:, None], tl.maximum(x0, x1)[:, None]
            passes = use[:, None] & (low <= place) & (high > place)
            height = _heights(x0[:, None], y0[:, None], x1[:, None], y1[:, None], place)
            row = (height + 0.5) / FINER - 0.5
            row = tl.ceil(tl.minimum(tl.maximum(row, 0.0), SIZE)).to(tl.int64)
            below = tl.full([EDGES, COLUMNS], -1, tl.int64) << row
            inside ^= tl.reduce(tl.where(passes, below, 0), 0, _differ)
            found = tl.sum(use.to(tl.int32), axis=0)
            start += found
        union |= inside
    row = tl.arange(0, COLUMNS)[:, None]
    bits = (union[None, :] >> row.to(tl.int64)) & 1
    pixel = region * (SIZE * SIZE) + row * SIZE + column[None, :]
    tl.store(masks + pixel, bits.to(tl.int8), mask=(row < SIZE) & (column < SIZE)[None, :])
