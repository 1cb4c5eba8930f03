"""Contrastive losses one query at a time, in float64, straight from the formulas."""

from __future__ import annotations

import math

from torch import Tensor


def slow_info_nce(query: Tensor, positive: Tensor, negatives: Tensor, temperature: float) -> float:
    """Mean over the (N, D) queries of -log of the positive's share."""
    losses = []
    for q, p in zip(query.tolist(), positive.tolist(), strict=True):
        shares = [math.exp(_dot(q, other) / temperature) for other in [p, *negatives.tolist()]]
        losses.append(-math.log(shares[0] / math.fsum(shares)))
    return math.fsum(losses) / len(losses)


def slow_nearest(query_map: Tensor, key_map: Tensor) -> list[list[int]]:
    """For each cell of (B, C, h, w) the position of the key cell with the largest cosine."""
    nearest = []
    for queries, keys in zip(query_map.flatten(2).mT, key_map.flatten(2).mT, strict=True):
        rows = [[_cosine(cell, key) for key in keys.tolist()] for cell in queries.tolist()]
        nearest.append([row.index(max(row)) for row in rows])
    return nearest


def _dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _cosine(a: list[float], b: list[float]) -> float:
    return _dot(a, b) / math.sqrt(_dot(a, a) * _dot(b, b))
