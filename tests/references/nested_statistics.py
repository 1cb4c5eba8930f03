"""Nested means and spreads, written from the definitions; to be read, not to be fast."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

Groups = Sequence[Sequence[float]]


def mean(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance_components(groups: Groups) -> tuple[float, float]:
    """Between and within variance of a one-way random-effects layout with any group sizes."""
    everything = [value for group in groups for value in group]
    count, number = len(everything), len(groups)
    squares_within = sum((value - mean(group)) ** 2 for group in groups for value in group)
    squares_total = sum((value - mean(everything)) ** 2 for value in everything)
    mean_within = squares_within / (count - number)
    mean_between = (squares_total - squares_within) / (number - 1)
    typical = (count - sum(len(group) ** 2 for group in groups) / count) / (number - 1)
    return max(0.0, (mean_between - mean_within) / typical), mean_within


def standard_error_of_group_means(groups: Groups) -> float:
    means = [mean(group) for group in groups]
    spread = sum((value - mean(means)) ** 2 for value in means) / (len(means) - 1)
    return math.sqrt(spread / len(means))


def every_resampled_mean(groups: Groups) -> list[tuple[float, float]]:
    """The mean of every possible draw of groups, and of values within each, with its chance."""
    results = []
    for chosen in itertools.product(groups, repeat=len(groups)):
        draws = [list(itertools.product(group, repeat=len(group))) for group in chosen]
        outcomes = list(itertools.product(*draws))
        chance = 1 / len(groups) ** len(groups) / len(outcomes)
        for values in outcomes:
            results.append((mean([mean(group) for group in values]), chance))
    return results


def quantile(outcomes: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest value that is not exceeded with at least this chance."""
    reached = 0.0
    for value, chance in sorted(outcomes):
        reached += chance
        if reached >= share - 1e-12:
            return value
    return max(value for value, _ in outcomes)
