"""InsCon's mosaics, regions and pull and push of cells as loops, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor


def places(photos: int, layout: tuple[int, int], shift: int) -> Iterator[tuple[int, int, int, int]]:
    """Of every photo its number, its image, and the row and column where it lies."""
    rows, columns = layout
    together = rows * columns
    for photo in range(photos):
        image, member = divmod(photo, together)
        place = next(p for p in range(together) if (p + shift) % together == member)
        yield photo, image, place // columns, place % columns


def slow_mosaic(tiles: Tensor, layout: tuple[int, int], shift: int) -> Tensor:
    """(B, C, t, t) photos of their final size -> (M, C, rows * t, columns * t)."""
    photos, channels, side, _ = tiles.shape
    rows, columns = layout
    images = photos // (rows * columns)
    made = torch.full((images, channels, rows * side, columns * side), math.nan, dtype=tiles.dtype)
    for photo, image, row, column in places(photos, layout, shift):
        for y in range(side):
            for x in range(side):
                made[image, :, row * side + y, column * side + x] = tiles[photo, :, y, x]
    return made


def slow_regions(maps: Tensor, layout: tuple[int, int], shift: int) -> Tensor:
    """(M, C, rows * h, columns * w) maps -> the part of every photo, (B, C, h, w)."""
    h, w = maps.shape[2] // layout[0], maps.shape[3] // layout[1]
    photos = len(maps) * layout[0] * layout[1]
    return torch.stack(
        [
            maps[image, :, row * h : (row + 1) * h, column * w : (column + 1) * w]
            for _, image, row, column in places(photos, layout, shift)
        ]
    )


def slow_pull_and_push(
    query: Tensor, key: Tensor, matches: Tensor, photos: int, temperature: float
) -> list[list[float | None]]:
    """The loss of every cell of every photo, or None without a match.

    Cells (B, L, D) of photos are unit vectors, matches (B, L, L) are within a photo.
    """
    query, key = query.detach(), key.detach()
    losses: list[list[float | None]] = []
    for photo in range(len(query)):
        company = range(photo // photos * photos, photo // photos * photos + photos)
        losses.append([])
        for i, cell in enumerate(query[photo]):
            pulling, pushing = [], []
            for other in company:
                for j, there in enumerate(key[other]):
                    matched = other == photo and bool(matches[photo, i, j])
                    (pulling if matched else pushing).append(float(cell @ there) / temperature)
            away = math.fsum(map(math.exp, pushing))
            terms = [-math.log(math.exp(near) / (math.exp(near) + away)) for near in pulling]
            losses[-1].append(math.fsum(terms) / len(terms) if terms else None)
    return losses
