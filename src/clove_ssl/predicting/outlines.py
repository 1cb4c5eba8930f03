"""The outline of a mask as a polygon along the edges of its pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]  # (n, 2) x, y
_Corner = tuple[int, int]

_STEPS = {(0, 1): 0, (1, 0): 1, (0, -1): 2, (-1, 0): 3}  # right, down, left, up, as (dy, dx)


def largest_outline(mask: NDArray[np.bool_]) -> Points:
    """The outer border of the largest connected part of a mask (H, W); empty without a pixel.

    Holes are not part of it, and neither are smaller parts: some formats have room for one polygon
    alone.
    """
    loops = _loops(mask)
    if not loops:
        return np.zeros((0, 2))
    return max(loops, key=_area)


def _area(loop: Points) -> float:
    """Positive for borders from outside, negative for those of holes."""
    x, y = loop.T
    return float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)) / 2


def _loops(mask: NDArray[np.bool_]) -> list[Points]:
    """All borders, with the mask on the right-hand side as one walks along."""
    steps = _border_steps(mask)
    loops = []
    while steps:
        # Not where two parts touch, since the way back would not be the end of the first.
        start = next((at for at, ways in steps.items() if len(ways) == 1), next(iter(steps)))
        loop: list[_Corner] = []
        corner, before = start, (0, 0)
        while not loop or corner != start:
            step = _next_step(steps, corner, before)
            if step != before:  # corners in the middle of a straight line say nothing
                loop.append(corner)
            corner, before = (corner[0] + step[0], corner[1] + step[1]), step
        loops.append(np.array([(x, y) for y, x in loop], np.float64))
    return loops


def _next_step(steps: dict[_Corner, list[_Corner]], corner: _Corner, before: _Corner) -> _Corner:
    """Take the step that leaves a corner; where two do, turn right, so that parts stay apart."""
    leaving = steps[corner]
    if len(leaving) > 1 and before in _STEPS:
        right = (_STEPS[before] + 1) % 4
        leaving.sort(key=lambda step: _STEPS[step] != right)
    step = leaving.pop(0)
    if not leaving:
        del steps[corner]
    return step


def _border_steps(mask: NDArray[np.bool_]) -> dict[_Corner, list[_Corner]]:
    """From every corner of pixels (y, x) the steps (dy, dx) along the border of the mask."""
    padded = np.pad(mask, 1)
    inside = padded[1:-1, 1:-1]
    sides = {  # the missing neighbour, the corner where the edge starts, its direction
        "above": (padded[:-2, 1:-1], (0, 0), (0, 1)),
        "right": (padded[1:-1, 2:], (0, 1), (1, 0)),
        "below": (padded[2:, 1:-1], (1, 1), (0, -1)),
        "left": (padded[1:-1, :-2], (1, 0), (-1, 0)),
    }
    steps: dict[_Corner, list[_Corner]] = {}
    for neighbour, (down, across), step in sides.values():
        rows, columns = np.nonzero(inside & ~neighbour)
        for corner in zip((rows + down).tolist(), (columns + across).tolist(), strict=True):
            steps.setdefault(corner, []).append(step)
    return steps
