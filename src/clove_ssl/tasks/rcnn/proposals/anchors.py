"""Anchor boxes: the fixed boxes whose offsets a region proposal network predicts.

Anchors of a location are ordered by size, then by ratio (``ratio = height / width``), and are not
rounded. The one of cell ``(row, column)`` is centred at ``stride * (column, row)``, which is the
corner of the cell and not its middle. Anchors of a map are ordered by row, column, anchor.

Dimensions: A anchors per location, H x W cells of a map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clove_ssl.layers.transfers import send


@dataclass(frozen=True)
class AnchorLayout:
    """Strides, sizes and ratios of the anchors of all levels of a feature pyramid."""

    strides: tuple[int, ...]
    sizes: tuple[tuple[float, ...], ...]
    """Square roots of the areas, in pixels, for every level."""
    ratios: tuple[float, ...]
    """Height over width."""

    def __post_init__(self) -> None:
        if len(self.strides) != len(self.sizes):
            raise ValueError(f"{len(self.strides)} strides for {len(self.sizes)} lists of sizes")

    def anchors_per_cell(self) -> tuple[int, ...]:
        """A of every level."""
        return tuple(len(sizes) * len(self.ratios) for sizes in self.sizes)

    def grids(
        self, grid_sizes: Sequence[tuple[int, int]], *, device: torch.device | None = None
    ) -> list[Tensor]:
        """Anchors of maps of ``(H, W)`` cells, level by level: each (H*W*A, 4)."""
        cells = [_cell_corners(sizes, self.ratios) for sizes in self.sizes]
        rows = [corners for cell in cells for corners in cell]
        table = send(rows, device or torch.device("cpu"), dtype=torch.float32)
        levels = zip(
            torch.split(table, list(self.anchors_per_cell())), grid_sizes, self.strides, strict=True
        )
        return [grid_anchors(cell, grid, stride=stride) for cell, grid, stride in levels]


def cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """The anchors around the origin: (A, 4) float32."""
    return torch.tensor(_cell_corners(sizes, ratios), dtype=torch.float32)


def _cell_corners(sizes: Sequence[float], ratios: Sequence[float]) -> list[list[float]]:
    """The corners of the anchors around the origin."""
    widths = [(math.sqrt(size**2 / ratio), ratio) for size in sizes for ratio in ratios]
    halves = [(width / 2, width * ratio / 2) for width, ratio in widths]
    return [[-x, -y, x, y] for x, y in halves]


def grid_anchors(cell: Tensor, grid_size: tuple[int, int], *, stride: int) -> Tensor:
    """Repeat the anchors of a cell (A, 4) over a map of (H, W) cells: (H*W*A, 4)."""
    height, width = grid_size
    x, y = (
        torch.arange(0, count * stride, stride, device=cell.device, dtype=cell.dtype)
        for count in (width, height)
    )
    shifts = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (H, W, 2)
    pairs = cell.view(-1, 2, 2)  # (A, 2, 2) both corners
    return (shifts[:, :, None, None] + pairs).view(-1, 4)
