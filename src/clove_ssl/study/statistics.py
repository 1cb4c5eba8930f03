"""Means and spreads of scores that were measured with several seeds.

Two things are repeated: pre-training (A seeds) and, for each of them, fine-tuning (n_a seeds).
Fine-tunings of one backbone share its luck, so they are no independent measurements of a method:
the unit that counts is the pre-training, and its score is the mean of its fine-tunings. With a
single pre-training only the spread of fine-tuning is known, and that is said (``basis``).

Scores are plain numbers in any unit; results are in the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev, variance
from typing import Literal

import numpy as np

Basis = Literal["pre-training", "fine-tuning", "none"]
Seeds = tuple[int, int]
"""Seed of the pre-training and seed of the fine-tuning."""
Measured = Mapping[Seeds, float]

RESAMPLES = 10_000
NOTABLE = 2.0
"""Standard errors from which on a difference is marked."""


@dataclass(frozen=True)
class Summary:
    """What is known about the score of a method."""

    mean: float  # of the means of all pre-trainings
    pretrainings: int
    values: int
    is_balanced: bool  # equally many fine-tunings of every pre-training
    between: float | None  # standard deviation between pre-trainings, without that of fine-tuning
    within: float | None  # standard deviation between fine-tunings of one pre-training
    deviation: float | None  # of a single run: both together, as far as they are known
    standard_error: float | None  # of the mean
    basis: Basis  # whose seeds the standard error rests on

    @property
    def count(self) -> str:
        """How often it was measured: 2 x 3 are two pre-trainings with three fine-tunings each.

        2, 5 are two pre-trainings with five fine-tunings in all, where one has more of them.
        """
        if self.values == self.pretrainings:
            return str(self.pretrainings)
        if not self.is_balanced:
            return f"{self.pretrainings}, {self.values}"
        return f"{self.pretrainings} x {self.values // self.pretrainings}"


@dataclass(frozen=True)
class Comparison:
    """The difference of two methods over the seeds that both were measured with."""

    summary: Summary  # of the differences, pair by pair
    interval: tuple[float, float] | None  # 95 % of resampled means

    @property
    def is_notable(self) -> bool:
        """Whether the difference exceeds twice its standard error."""
        return exceeds(self.summary.mean, self.summary.standard_error)


@dataclass(frozen=True)
class Noise:
    """How far apart runs of one method are, judged from all methods of a study together.

    Two seeds of a method say next to nothing about its spread; two of each of ten methods do, if
    luck is about the same for all of them.
    """

    deviation: float  # between pre-trainings of one method
    freedom: int  # degrees of freedom of the deviation

    def least_difference(self, pretrainings: int) -> float:
        """What the means of two equal methods exceed by chance once in twenty times."""
        return student_quantile(self.freedom) * self.deviation * math.sqrt(2 / pretrainings)


def noise_of(methods: Iterable[Measured]) -> Noise | None:
    """The common spread of pre-trainings; nothing where no method has two."""
    means = [[fmean(group) for group in _groups(measured)] for measured in methods]
    deviation = _within(means)
    freedom = sum(len(each) - 1 for each in means)
    return None if deviation is None else Noise(deviation, freedom)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, within 1 %."""
    if freedom == 1:
        return math.tan(0.475 * math.pi)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = NormalDist().inv_cdf(0.975)
    series = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )  # in powers of 1 / freedom
    return math.fsum(term / freedom**power for power, term in enumerate(series))


def summarize(measured: Measured) -> Summary:
    """Mean and nested spread of a score."""
    groups = _groups(measured)
    means = [fmean(group) for group in groups]
    within, between = _within(groups), _between(groups)
    return Summary(
        mean=fmean(means),
        pretrainings=len(groups),
        values=len(measured),
        is_balanced=len({len(group) for group in groups}) == 1,
        between=between,
        within=within,
        deviation=_deviation(groups, within, between),
        standard_error=_standard_error(groups, means),
        basis=_basis(groups),
    )


def compare(ours: Measured, other: Measured) -> Comparison | None:
    """Ours minus the other, on common seeds; nothing where there are none."""
    common = sorted(ours.keys() & other.keys())
    if not common:
        return None
    differences = {seeds: ours[seeds] - other[seeds] for seeds in common}
    return Comparison(summarize(differences), bootstrap_interval(differences))


def exceeds(difference: float, standard_error: float | None) -> bool:
    """Whether a difference is more than twice its standard error."""
    return standard_error is not None and abs(difference) > NOTABLE * standard_error


def bootstrap_interval(
    measured: Measured, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """95 % of the means when pre-trainings, and fine-tunings within them, are drawn again."""
    groups = _groups(measured)
    if len(measured) < 2:
        return None
    random = np.random.default_rng(seed)
    drawn = random.integers(len(groups), size=(resamples, len(groups)))  # (R, A)
    means = np.empty(drawn.shape)
    for number, group in enumerate(groups):
        places = drawn == number  # (R, A)
        picks = random.integers(len(group), size=(int(places.sum()), len(group)))
        means[places] = np.asarray(group)[picks].mean(axis=1)
    low, high = np.quantile(means.mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _groups(measured: Measured) -> list[list[float]]:
    """The scores of each pre-training."""
    groups: dict[int, list[float]] = {}
    for (pretraining, _), value in sorted(measured.items()):
        groups.setdefault(pretraining, []).append(value)
    return list(groups.values())


def _within(groups: Sequence[Sequence[float]]) -> float | None:
    """Root of the pooled variance within groups."""
    freedom = sum(len(group) - 1 for group in groups)
    if not freedom:
        return None
    squares = sum((len(group) - 1) * variance(group) for group in groups if len(group) > 1)
    return math.sqrt(squares / freedom)


def _between(groups: Sequence[Sequence[float]]) -> float | None:
    """Root of the variance component of groups, by the analysis of variance; 0 where it is < 0."""
    within = _within(groups)
    if len(groups) < 2 or within is None:
        return None
    sizes = [len(group) for group in groups]
    whole = fmean([value for group in groups for value in group])
    squares = sum(len(group) * (fmean(group) - whole) ** 2 for group in groups)
    freedom = len(groups) - 1
    size = (sum(sizes) - sum(n * n for n in sizes) / sum(sizes)) / freedom
    return math.sqrt(max(0.0, (squares / freedom - within**2) / size))


def _deviation(
    groups: Sequence[Sequence[float]], within: float | None, between: float | None
) -> float | None:
    """The spread to expect of one more run with new seeds."""
    if within is not None:
        return math.hypot(within, between or 0.0)
    return stdev([group[0] for group in groups]) if len(groups) > 1 else None


def _standard_error(groups: Sequence[Sequence[float]], means: Sequence[float]) -> float | None:
    if len(groups) > 1:
        return stdev(means) / math.sqrt(len(means))
    (group,) = groups
    return stdev(group) / math.sqrt(len(group)) if len(group) > 1 else None


def _basis(groups: Sequence[Sequence[float]]) -> Basis:
    if len(groups) > 1:
        return "pre-training"
    return "fine-tuning" if len(groups[0]) > 1 else "none"
