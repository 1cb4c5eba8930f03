"""The learning-rate and momentum schedules as whole arrays."""

from __future__ import annotations

import numpy as np


def warmup_cosine(
    peak: float, total_steps: int, warmup_steps: int, start: float, final: float
) -> np.ndarray:
    """The value of every step: an inclusive line, then half a cosine."""
    rise = np.linspace(start, peak, warmup_steps)
    done = np.arange(total_steps - warmup_steps) / (total_steps - warmup_steps)
    return np.concatenate([rise, final + (peak - final) * (1 + np.cos(np.pi * done)) / 2])


def cosine(start: float, end: float, total_steps: int) -> np.ndarray:
    """The value of every step."""
    done = np.arange(total_steps) / total_steps
    return end - (end - start) * (np.cos(np.pi * done) + 1) / 2
