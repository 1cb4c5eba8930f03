"""VICReg's terms and VICRegL's matches as loops, in float64."""

from __future__ import annotations

import math

from torch import Tensor


def variance(rows: Tensor) -> float:
    """Mean over channels of max(0, 1 - standard deviation) of (N, D) rows."""
    total = 0.0
    for channel in rows.T.tolist():
        mean = sum(channel) / len(channel)
        spread = sum((v - mean) ** 2 for v in channel) / (len(channel) - 1)
        total += max(0.0, 1 - math.sqrt(spread + 1e-4))
    return total / rows.shape[1]


def covariance(rows: Tensor, *, less_chance: bool = False) -> float:
    """Sum of squared covariances of different channels of (N, D) rows, over D.

    ``less_chance`` takes from each what two independent normal channels of these variances have.
    """
    channels = rows.shape[1]
    total = 0.0
    for a in range(channels):
        for b in range(channels):
            if a != b:
                total += _covariance(rows, a, b) ** 2
            if a != b and less_chance:
                variances = _covariance(rows, a, a) * _covariance(rows, b, b)
                total -= variances / (len(rows) - 1)
    return total / channels


def _covariance(rows: Tensor, a: int, b: int) -> float:
    """That of two channels of (N, D) rows."""
    means = [float(rows[:, channel].mean()) for channel in (a, b)]
    products = [float((row[a] - means[0]) * (row[b] - means[1])) for row in rows]
    return sum(products) / (len(rows) - 1)


def matched(here: Tensor, there: Tensor, count: int | None) -> list[tuple[int, int]]:
    """(L, D) rows and their nearest of (L', D) rows; of ``count`` only the closest pairs."""
    pairs = []
    for i, row in enumerate(here):
        distances = [float((row - other).norm()) for other in there]
        j = min(range(len(distances)), key=distances.__getitem__)
        pairs.append((distances[j], i, j))
    kept = sorted(pairs)[: len(pairs) if count is None else count]
    return sorted((i, j) for _, i, j in kept)


def local_loss(
    maps: list[Tensor], places: list[Tensor], pairs: list[tuple[int, int]], counts: tuple[int, int]
) -> float:
    """25 invariance + 25 variance + covariance of matched cells, as VICRegL adds them up."""
    total = 0.0
    for i, j in pairs:
        for a, b, count in ((i, j, counts[0]), (j, i, counts[1])):
            for kind, limit in ((maps, None), (places, count)):
                found = [matched(x, y, limit) for x, y in zip(kind[a], kind[b], strict=True)]
                total += _cells(maps[a], maps[b], found) / 2
    return total / len(pairs)


def _cells(a: Tensor, b: Tensor, found: list[list[tuple[int, int]]]) -> float:
    """``found`` has for every image the same number of pairs."""
    total, places = 0.0, len(found[0])
    for place in range(places):
        left = a.new_empty(len(a), a.shape[2])
        right = a.new_empty(len(a), a.shape[2])
        for image, pairs in enumerate(found):
            left[image], right[image] = a[image, pairs[place][0]], b[image, pairs[place][1]]
        invariance = float((left - right).square().mean())
        total += 25 * invariance
        total += 25 * (variance(left) + variance(right)) / 2
        total += (covariance(left) + covariance(right)) / 2
    return total / places
