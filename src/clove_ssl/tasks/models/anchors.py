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

ASPECT_RATIOS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class AnchorLayout:
    """Strides, sizes and ratios of the anchors of all levels of a feature pyramid."""

    strides: tuple[int, ...]
    sizes: tuple[tuple[float, ...], ...]
    """Square roots of the areas, in pixels, for every level."""
    ratios: tuple[float, ...] = ASPECT_RATIOS

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
        levels = zip(self.strides, self.sizes, grid_sizes, strict=True)
        return [
            grid_anchors(cell_anchors(sizes, self.ratios, device=device), grid, stride=stride)
            for stride, sizes, grid in levels
        ]


C4_ANCHORS = AnchorLayout(strides=(16,), sizes=((32, 64, 128, 256, 512),))
FPN_ANCHORS = AnchorLayout(strides=(4, 8, 16, 32, 64), sizes=((32,), (64,), (128,), (256,), (512,)))


def cell_anchors(
    sizes: Sequence[float], ratios: Sequence[float], *, device: torch.device | None = None
) -> Tensor:
    """The anchors around the origin: (A, 4) float32."""
    widths = [(math.sqrt(size**2 / ratio), ratio) for size in sizes for ratio in ratios]
    sides = [(width, width * ratio) for width, ratio in widths]
    half = torch.tensor(sides, dtype=torch.float64, device=device) / 2  # (A, 2)
    return torch.cat([-half, half], dim=1).float()


def grid_anchors(cell: Tensor, grid_size: tuple[int, int], *, stride: int) -> Tensor:
    """Repeat the anchors of a cell (A, 4) over a map of (H, W) cells: (H*W*A, 4)."""
    height, width = grid_size
    y, x = torch.meshgrid(
        torch.arange(height, device=cell.device, dtype=cell.dtype) * stride,
        torch.arange(width, device=cell.device, dtype=cell.dtype) * stride,
        indexing="ij",
    )  # (H, W)
    shifts = torch.stack([x, y, x, y], dim=-1)  # (H, W, 4)
    return (shifts[:, :, None] + cell).flatten(0, 2)
