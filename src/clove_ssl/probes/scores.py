"""What a probe finds: a score, how sure it is, and what guessing would give.

Intervals are bootstraps over images: the images are drawn again with replacement,
and 95 % of the scores so found lie in the interval. Cells and pixels of one image
are alike, so drawing those would promise too much.

Dimensions: N images, R resamples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

RESAMPLES = 500
_ENDS = (0.025, 0.975)


@dataclass(frozen=True)
class Score:
    """One score of a probe."""

    value: float
    interval: tuple[float, float] | None = None  # None where resampling would mislead
    chance: float | None = None  # what features that know nothing would score
    is_share: bool = True  # a number from 0 to 1 that reads better in percent
    extra: Mapping[str, float] = field(default_factory=dict)  # what else was found on the way
    drawn: Tensor | None = field(default=None, repr=False, compare=False)  # (R,) its resamples

    def shown(self) -> str:
        """The value as a person reads it."""
        return self._text(self.value)

    def shown_interval(self) -> str:
        """The interval, or a dash."""
        if self.interval is None:
            return "-"
        return " to ".join(self._text(end) for end in self.interval)

    def shown_chance(self) -> str:
        """The chance level, or a dash."""
        return "-" if self.chance is None else self._text(self.chance)

    def _text(self, value: float) -> str:
        return f"{100 * value:.1f}" if self.is_share else f"{value:.3g}"


@dataclass(frozen=True)
class Gain:
    """By how much one backbone is ahead of another on the same images."""

    value: float
    interval: tuple[float, float] | None


def gain(score: Score, baseline: Score) -> Gain:
    """The difference of two scores; both must have been found on the same images.

    Resamples of the same images are the same for both, so what an image makes easy or hard
    for all backbones drops out, and small differences can be told from none.
    """
    value = score.value - baseline.value
    if score.drawn is None or baseline.drawn is None or len(score.drawn) != len(baseline.drawn):
        return Gain(value, None)
    return Gain(value, spread_of(score.drawn - baseline.drawn))


def resample_counts(images: int, *, seed: int) -> Tensor:
    """How often each image occurs in each resample: (R, N) float64."""
    generator = torch.Generator().manual_seed(seed)
    # From the seed alone, so all backbones are resampled alike and can be compared pair by pair.
    draws = torch.randint(images, (RESAMPLES, images), generator=generator)  # (R, N)
    counts = torch.zeros(RESAMPLES, images, dtype=torch.float64)
    return counts.scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float64))


def share(right: Tensor, judged: Tensor, *, chance: float | None = None, seed: int) -> Score:
    """The share of what was judged that is right, from the counts (N,) of every image."""
    right, judged = right.double().cpu(), judged.double().cpu()
    counts = resample_counts(len(right), seed=seed)  # (R, N)
    # A ratio of sums, not a mean of ratios: images with many judged cells count accordingly.
    drawn = (counts @ right) / (counts @ judged).clamp(min=1)  # (R,)
    value = (right.sum() / judged.sum().clamp(min=1)).item()
    return Score(value, spread_of(drawn), chance, drawn=drawn)


def mean(values: Tensor, *, seed: int) -> Score:
    """The mean of one number per image (N,)."""
    values = values.double().cpu()
    drawn = resample_counts(len(values), seed=seed) @ values / len(values)  # (R,)
    return Score(values.mean().item(), spread_of(drawn), is_share=False, drawn=drawn)


def spread_of(drawn: Tensor) -> tuple[float, float]:
    """The ends of the middle 95 % of the scores of all resamples."""
    low, high = drawn.quantile(torch.tensor(_ENDS, dtype=drawn.dtype)).tolist()
    return low, high
