"""Schedules: pure functions of the optimizer step, without state.

A resumed run asks for the value of its step and so cannot drift. Steps count
from 0; a step past the end keeps the last value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

Schedule = Callable[[int], float]


def cosine(start: float, end: float, total_steps: int) -> Schedule:
    """Half a cosine from ``start`` at step 0 to ``end`` at ``total_steps``, just after the last."""

    def value(step: int) -> float:
        done = min(step / max(1, total_steps), 1.0)
        return end + (start - end) * (1 + math.cos(math.pi * done)) / 2

    return value


def linear(start: float, end: float, total_steps: int) -> Schedule:
    """A line from ``start`` at step 0 to ``end`` at ``total_steps``, just after the last."""

    def value(step: int) -> float:
        done = min(step / max(1, total_steps), 1.0)
        return start + (end - start) * done

    return value


def warmup_cosine(
    *, peak: float, total_steps: int, warmup_steps: int, start: float, final: float
) -> Schedule:
    """A line from ``start`` up to ``peak``, then half a cosine down to ``final``.

    Both ends belong to the line, as in CLoVE's released code: the peak is
    reached at the last of the ``warmup_steps`` and again at the step after it.
    """
    descent = cosine(peak, final, total_steps - warmup_steps)

    def value(step: int) -> float:
        if step >= warmup_steps:
            return descent(step - warmup_steps)
        return start + (peak - start) * step / max(1, warmup_steps - 1)

    return value


def warmup_decay(
    *, peak: float, steps: Sequence[int], decay: float, warmup_steps: int, warmup_factor: float
) -> Schedule:
    """A line up to ``peak``, which is then multiplied by ``decay`` at each of ``steps``.

    The line begins at ``warmup_factor * peak`` and reaches the peak at the step after the warm-up.
    A decay counts from its own step on.
    """

    def value(step: int) -> float:
        rate = peak * decay ** bisect_right(steps, step)
        if step >= warmup_steps:
            return rate
        done = step / warmup_steps
        return rate * (warmup_factor * (1 - done) + done)

    return value
