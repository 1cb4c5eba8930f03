"""The figures of probes, one pair at a time in float64; written to be read, not to be fast."""

from __future__ import annotations

import math

from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a @ b) / (a.norm() * b.norm()))


def knn_votes(
    known: Tensor, labels: Tensor, query: Tensor, *, classes: int, k: int, temperature: float
) -> list[float]:
    """Shares of the classes among the ``k`` nearest of ``known`` (M, D) to one query (D,)."""
    similar = sorted(
        ((cosine(row, query), int(label)) for row, label in zip(known, labels, strict=True)),
        reverse=True,
    )[:k]
    votes = [0.0] * classes
    for similarity, label in similar:
        votes[label] += math.exp(similarity / temperature)
    return [vote / sum(votes) for vote in votes]


def cell_centre(box: list[float], grid: tuple[int, int], cell: int) -> tuple[float, float]:
    x0, y0, x1, y1 = box
    row, column = divmod(cell, grid[1])
    return x0 + (column + 0.5) * (x1 - x0) / grid[1], y0 + (row + 0.5) * (y1 - y0) / grid[0]


def diagonal(box: list[float], grid: tuple[int, int]) -> float:
    return math.hypot((box[2] - box[0]) / grid[1], (box[3] - box[1]) / grid[0])


def found_one_way(
    a: Tensor, b: Tensor, box_a: list[float], box_b: list[float], threshold: float
) -> tuple[int, int, float]:
    """Cells of ``a`` (D, h, w) whose nearest neighbour in ``b`` is right, judged, and by luck."""
    grid_a, grid_b = tuple(a.shape[1:]), tuple(b.shape[1:])
    limit = threshold * max(diagonal(box_a, grid_a), diagonal(box_b, grid_b))
    rows_a, rows_b = a.flatten(1).T, b.flatten(1).T
    right, judged, lucky = 0, 0, 0.0
    for i, row in enumerate(rows_a):
        here = cell_centre(box_a, grid_a, i)
        matches = [
            math.dist(here, cell_centre(box_b, grid_b, j)) < limit for j in range(len(rows_b))
        ]
        if any(matches):
            nearest = max(range(len(rows_b)), key=lambda j: cosine(row, rows_b[j]))
            right, judged = right + matches[nearest], judged + 1
            lucky += sum(matches) / len(matches)
    return right, judged, lucky


def uniformity(rows: Tensor) -> float:
    """Wang and Isola's with t = 2, over all pairs of different (N, D) rows."""
    unit = [row / row.norm() for row in rows]
    terms = [
        math.exp(-2 * float((unit[i] - unit[j]).square().sum()))
        for i in range(len(unit))
        for j in range(i)
    ]
    return math.log(sum(terms) / len(terms))


def transferred(
    descriptors: Tensor,  # (R, P, D)
    maps: Tensor,  # (D, h, w)
    points: Tensor,  # (P, 2)
    judged: Tensor,  # (R, P)
    radius: float,
    size: int,
) -> tuple[int, int, float]:
    """Keypoints found, judged and found by luck, in one target."""
    h, w = maps.shape[1:]
    cells = maps.flatten(1).T
    centres = [((i % w + 0.5) * size / w, (i // w + 0.5) * size / h) for i in range(h * w)]
    right, count, lucky = 0, 0, 0.0
    for r in range(len(descriptors)):
        for p in range(len(points)):
            if judged[r, p]:
                best = max(range(h * w), key=lambda i: cosine(descriptors[r, p], cells[i]))
                right += math.dist(centres[best], points[p].tolist()) <= radius
                near = [math.dist(centre, points[p].tolist()) <= radius for centre in centres]
                lucky += sum(near) / len(near)
                count += 1
    return right, count, lucky
