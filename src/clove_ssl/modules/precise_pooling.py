"""Precise RoI pooling: the mean of a feature map over a box, exactly.

Between the cells a map is read bilinearly, and around it are zeros; the mean
over a box is an integral that needs no samples. A bilinear surface is a sum of
tents, one per cell, and the integral of a tent over a box is a product of one
factor per axis. So pooling is one product with a matrix of such shares, and
its gradient is that of a product.

Cell (i, j) lies at pixel (i * stride, j * stride), without a shift by half a
cell; that is where a ResNet's cells look at, and how the original does it.

Dimensions: B images, N boxes, C channels, h x w cells.
"""

from __future__ import annotations

import torch
from torch import Tensor


def precise_pool(maps: Tensor, boxes: Tensor, *, stride: int) -> Tensor:
    """Mean of (B, C, h, w) maps over boxes in pixels: (B, N, C), in fp32 or better.

    Args:
        maps: Feature maps.
        boxes: (B, N, 4) as x0, y0, x1, y1 with x0 <= x1 and y0 <= y1, or (1, N, 4) for boxes that
            all images share. One without area gives zeros.
        stride: Pixels per cell.
    """
    wide = torch.promote_types(maps.dtype, torch.float32)
    x0, y0, x1, y1 = (boxes / stride).unbind(-1)  # 4 x (B, N)
    rows = _shares(y0, y1, maps.shape[2]).to(wide)  # (B, N, h)
    columns = _shares(x0, x1, maps.shape[3]).to(wide)  # (B, N, w)
    shares = (rows[..., :, None] * columns[..., None, :]).flatten(2)  # (B, N, h * w)
    with torch.autocast(maps.device.type, enabled=False):  # shares are fractions of cells
        return shares @ maps.to(wide).flatten(2).mT


def _shares(start: Tensor, end: Tensor, count: int) -> Tensor:
    """Share of each of ``count`` cells in the mean between two places: (B, N, count)."""
    cells = torch.arange(count, dtype=start.dtype, device=start.device)  # (count,)
    integral = _tent_before(end[..., None] - cells) - _tent_before(start[..., None] - cells)
    length = (end - start).clamp(min=torch.finfo(start.dtype).tiny)
    return integral / length[..., None]


def _tent_before(place: Tensor) -> Tensor:
    """Area left of a place under a tent of height 1 that stands from -1 to 1."""
    place = place.clamp(-1, 1)
    return 0.5 + place - place * place.abs() / 2
