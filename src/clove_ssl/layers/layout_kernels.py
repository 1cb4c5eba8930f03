"""Triton kernels that turn maps round in memory; import only where Triton is installed.

torch copies from one order to the other number by number, each from where it happens to lie, and
takes several times as long as the memory would need. Here a tile is read in the order in which it
lies and written in the order in which it will lie.
"""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 64  # rows and columns of a program


def turn(matrices: Tensor) -> Tensor:
    """Matrices without gaps (B, M, N) -> (B, N, M), without gaps again."""
    count, rows, columns = matrices.shape
    turned = torch.empty((count, columns, rows), dtype=matrices.dtype, device=matrices.device)
    if turned.numel() > 0:
        grid = (count, triton.cdiv(rows, _TILE), triton.cdiv(columns, _TILE))
        _turn[grid](matrices, turned, ROWS=rows, COLUMNS=columns, TILE=_TILE)
    return turned


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
