"""ReSim's pooling and loss as loops, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def slow_pool(feature_map: Tensor, box: list[float], stride: int) -> Tensor:
    """Mean of a (C, h, w) map over one box, square by square between neighbouring cells: (C,).

    Inside such a square the surface is affine along each axis, so the mean over
    any part of it is the value in the middle of that part.
    """
    x0, y0, x1, y1 = (edge / stride for edge in box)
    total = torch.zeros(len(feature_map), dtype=torch.float64)
    for row in range(-1, feature_map.shape[1]):
        for column in range(-1, feature_map.shape[2]):
            top, bottom = max(y0, row), min(y1, row + 1)
            left, right = max(x0, column), min(x1, column + 1)
            if top < bottom and left < right:
                middle = _surface(feature_map, (top + bottom) / 2, (left + right) / 2)
                total += (bottom - top) * (right - left) * middle
    return total / ((x1 - x0) * (y1 - y0))


def slow_window_loss(
    queries: Tensor,  # (B, N, C), of any length
    positives: Tensor,  # (B, N, C)
    inside: Tensor,  # (B, N)
    key_map: Tensor,  # (B, C, h, w)
    *,
    temperature: float,
    images: int,
) -> float:
    """Mean InfoNCE of the windows that count, each among the cells of its group of images."""
    losses = []
    for image, window in inside.nonzero().tolist():
        first = image // images * images
        negatives = _averaged(key_map[first : first + images])
        query = _unit(queries[image, window])
        own = float(query @ _unit(positives[image, window])) / temperature
        others = [float(query @ cell) / temperature for cell in negatives]
        losses.append(math.log(sum(math.exp(each) for each in [own, *others])) - own)
    return math.fsum(losses) / len(losses)


def _surface(feature_map: Tensor, y: float, x: float) -> Tensor:
    value = torch.zeros(len(feature_map), dtype=torch.float64)
    for row in range(feature_map.shape[1]):
        for column in range(feature_map.shape[2]):
            weight = max(0.0, 1 - abs(y - row)) * max(0.0, 1 - abs(x - column))
            value += weight * feature_map[:, row, column]
    return value


def _averaged(maps: Tensor) -> list[Tensor]:
    """Unit means of all 3x3 cells of all maps."""
    _, _, height, width = maps.shape
    return [
        _unit(feature_map[:, row : row + 3, column : column + 3].mean((1, 2)))
        for feature_map in maps
        for row in range(height - 2)
        for column in range(width - 2)
    ]


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()
