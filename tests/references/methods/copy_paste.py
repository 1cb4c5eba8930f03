"""Pasted views and their losses, one pixel and one pair of cells at a time, in float64."""

from __future__ import annotations

import math

from torch import Tensor

Cells = list[tuple[int, int]]


def slow_paste(front: Tensor, back: Tensor, rectangle: list[int]) -> Tensor:
    """(3, s, s): the back with the rectangle (top, left, height, width) of the front on it."""
    top, left, height, width = rectangle
    shown = back.clone()
    for row in range(top, top + height):
        for column in range(left, left + width):
            shown[:, row, column] = front[:, row, column]
    return shown


def slow_pool(cells: Tensor, mask: Tensor) -> list[list[float]]:
    """Mean foreground cell of every (D, h, w) map."""
    rows = []
    for image, inside in zip(cells, mask, strict=True):
        chosen = [image[:, y, x].tolist() for y, x in inside_of(inside)]
        rows.append([math.fsum(values) / len(chosen) for values in zip(*chosen, strict=True)])
    return rows


def slow_alignment(query: Tensor, key: Tensor, query_mask: Tensor, key_mask: Tensor) -> list[float]:
    """For every image minus the mean log-share of query cells over foreground pairs."""
    losses = []
    for q, k, here, there in zip(query, key, query_mask, key_mask, strict=True):
        terms = []
        for place in inside_of(there):
            target = k[:, *place].tolist()
            every = [
                _exp(q[:, y, x].tolist(), target)
                for y in range(len(here))
                for x in range(len(here[0]))
            ]
            total = math.fsum(every)
            terms += [
                -math.log(_exp(q[:, y, x].tolist(), target) / total) for y, x in inside_of(here)
            ]
        losses.append(math.fsum(terms) / len(terms))
    return losses


def inside_of(mask: Tensor) -> Cells:
    """The cells of a mask (h, w)."""
    return [(y, x) for y, row in enumerate(mask.tolist()) for x, on in enumerate(row) if on]


def _exp(a: list[float], b: list[float]) -> float:
    return math.exp(math.fsum(x * y for x, y in zip(a, b, strict=True)))
