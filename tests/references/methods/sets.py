"""SetSim's sets and loss as loops, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def slow_attention_pairs(
    query_map: Tensor, key_map: Tensor, *, attention: float, likeness: float
) -> Tensor:
    """Pairs of cells of (B, C, h, w) maps that stand out in both and look alike: (B, L, K)."""
    queries, keys = query_map.flatten(2).mT, key_map.flatten(2).mT  # (B, L, C) each
    found = torch.zeros(len(queries), queries.shape[1], keys.shape[1], dtype=torch.bool)
    for image in range(len(queries)):
        here, there = _outstanding(queries[image], attention), _outstanding(keys[image], attention)
        for i in here:
            for j in there:
                a, b = queries[image, i], keys[image, j]
                found[image, i, j] = bool(a @ b / (a.norm() * b.norm()) >= likeness)
    return found


def slow_set_loss(
    query: Tensor, keys: Tensor, pairs: Tensor, negatives: Tensor, temperature: float
) -> list[float]:
    """The loss of every image for unit (B, L, D) queries and (B, K, D) keys."""
    by_image = []
    for image in range(len(query)):
        cells = []
        for i in range(query.shape[1]):
            members = pairs[image, i].nonzero().flatten().tolist()
            if not members:
                continue
            near = [float(query[image, i] @ keys[image, j]) for j in members]
            shares = [math.exp(each / temperature) for each in near]
            queue = [math.exp(float(query[image, i] @ each) / temperature) for each in negatives]
            total = math.fsum(shares) + math.fsum(queue)
            cells.append(-math.fsum(math.log(share / total) for share in shares) / len(shares))
        by_image.append(math.fsum(cells) / max(1, len(cells)))
    return by_image


def _outstanding(cells: Tensor, attention: float) -> list[int]:
    """Positions of the (L, C) cells whose scaled strength reaches ``attention``."""
    strength = [float(cell @ cell) / len(cell) for cell in cells]
    low, high = min(strength), max(strength)
    return [i for i, each in enumerate(strength) if (each - low) / (high - low) >= attention]
