"""Triton kernels that move cells of maps in memory; import only where Triton is installed.

torch copies what has gaps or lies in another order number by number, each from where it happens to
lie, and takes several times as long as the memory would need. Here whole lines of memory are read
and written.
"""
# mypy: ignore-errors

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64  # rows and columns of a program that turns
_VALUES = 4096  # of a program that moves cells
_CHANNELS = 512  # of these, at most


class Steps(NamedTuple):
    """How the rows and columns of two maps belong together."""

    chosen: tuple[int, int] = (1, 1)  # of so many rows and columns of the target one is written
    read: tuple[int, int] = (1, 1)  # and of so many of the source one is read


def turn(matrices: Tensor) -> Tensor:
    """Matrices without gaps (B, M, N) -> (B, N, M), without gaps again."""
    count, rows, columns = matrices.shape
    turned = torch.empty((count, columns, rows), dtype=matrices.dtype, device=matrices.device)
    if turned.numel() > 0:
        grid = (count, triton.cdiv(rows, _TILE), triton.cdiv(columns, _TILE))
        _turn[grid](matrices, turned, ROWS=rows, COLUMNS=columns, TILE=_TILE)
    return turned


def move_cells(source: Tensor, target: Tensor, steps: Steps) -> Tensor:
    """Write cells of maps (B, C, h, w) into maps (B, C, H, W), and zeros around; channels last."""
    count, channels, height, width = target.shape
    columns = min(triton.next_power_of_2(channels), _CHANNELS)
    rows = _VALUES // columns
    cells = count * height * width
    if target.numel() > 0:
        grid = (triton.cdiv(cells, rows), triton.cdiv(channels, columns))
        _move[grid](
            source,
            target,
            cells,
            height,
            width,
            *source.shape[2:],
            CHANNELS=channels,
            CHOSEN_DOWN=steps.chosen[0],
            CHOSEN_ACROSS=steps.chosen[1],
            READ_DOWN=steps.read[0],
            READ_ACROSS=steps.read[1],
            ROWS=rows,
            COLUMNS=columns,
        )
    return target


@triton.jit
def _turn(source, target, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr):
    """Turn one tile of one matrix round."""
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(2) * TILE + tl.arange(0, TILE)[None, :]
    inside = (row < ROWS) & (column < COLUMNS)
    # 64 bits: the regions of a batch pass 2^31 values.
    matrix = tl.program_id(0).to(tl.int64) * (ROWS * COLUMNS)
    # Neighbours of a row are neighbours here and those of a column are below. Triton gives threads
    # other numbers in between, so that both ends see whole lines of memory.
    values = tl.load(source + matrix + row * COLUMNS + column, mask=inside)
    tl.store(target + matrix + column * ROWS + row, values, mask=inside)


@triton.jit(do_not_specialize=["cells", "height", "width", "from_height", "from_width"])
def _move(
    source,
    target,
    cells,
    height,
    width,
    from_height,
    from_width,
    CHANNELS: tl.constexpr,
    CHOSEN_DOWN: tl.constexpr,
    CHOSEN_ACROSS: tl.constexpr,
    READ_DOWN: tl.constexpr,
    READ_ACROSS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write some cells of the target, all channels of a cell side by side."""
    cell = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    column, row, count = cell % width, cell // width % height, cell // width // height
    exists = (cell < cells)[:, None] & (channel < CHANNELS)
    chosen = (row % CHOSEN_DOWN == 0) & (column % CHOSEN_ACROSS == 0)
    row = row // CHOSEN_DOWN * READ_DOWN
    column = column // CHOSEN_ACROSS * READ_ACROSS
    # 64 bits: the maps of the regions of a batch pass 2^31 values.
    place = ((count * from_height + row) * from_width + column).to(tl.int64) * CHANNELS
    values = tl.load(source + place[:, None] + channel, mask=exists & chosen[:, None], other=0.0)
    tl.store(target + cell.to(tl.int64)[:, None] * CHANNELS + channel, values, mask=exists)
