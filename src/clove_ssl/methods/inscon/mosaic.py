"""Several photos in one image, and where each of them is found again in its feature map.

A batch is cut into rows of P photos; row m makes image m. Place p, counted row
by row, holds photo (p + shift) mod P of its row. All follows from the order of
the batch and the shift, nothing is drawn.

Dimensions: B photos, P of them in an image, M = B / P images, C channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.layers.fp32 import at_least_fp32

Layout = tuple[int, int]  # rows and columns of photos


def assemble(pixels: Tensor, layout: Layout, tile: int, *, shift: int = 0) -> Tensor:
    """(B, C, H, W) photos, each downscaled to ``tile`` -> (M, C, rows * tile, columns * tile)."""
    rows, columns = layout
    _check_batch(len(pixels), rows * columns)
    small = downscale(pixels, tile)  # (B, C, tile, tile)
    placed = small.reshape(-1, rows * columns, *small.shape[1:]).roll(-shift, dims=1)
    grid = placed.reshape(-1, rows, columns, *small.shape[1:])  # (M, rows, columns, C, tile, tile)
    images = grid.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    # The layout in memory that convolutions are fast in is lost on the way.
    interleaved = pixels.is_contiguous(memory_format=torch.channels_last)
    wanted = torch.channels_last if interleaved else torch.contiguous_format
    return images.contiguous(memory_format=wanted)


def split_regions(maps: Tensor, layout: Layout, *, shift: int = 0) -> Tensor:
    """Maps of images (M, C, rows * h, columns * w) as one map per photo, (B, C, h, w).

    Photos come in the order of the batch, wherever ``shift`` has put them.
    """
    rows, columns = layout
    images, channels, height, width = maps.shape
    grid = maps.reshape(images, channels, rows, height // rows, columns, width // columns)
    placed = grid.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (M, P, C, h, w)
    return placed.roll(shift, dims=1).flatten(0, 1)


def downscale(pixels: Tensor, side: int) -> Tensor:
    """Square images (B, C, H, H) -> (B, C, side, side), every pixel taking part in the result."""
    if pixels.shape[-1] == side:
        return pixels
    small = F.interpolate(at_least_fp32(pixels), (side, side), mode="bilinear", antialias=True)
    return small.to(pixels.dtype)


def _check_batch(photos: int, together: int) -> None:
    if photos % together:
        raise UserError(
            f"method.mosaic puts {together} photos into one image, and the {photos} photos each "
            "process handles at a time cannot be divided by that. Give a --batch-size or "
            f"--micro-batch of which each process gets a multiple of {together}, or other "
            "--method.mosaic.rows and --method.mosaic.columns."
        )
