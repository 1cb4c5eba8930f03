"""The metrics of a run over time, ready to be judged or drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

RECENT = 10  # logged steps whose median stands for "now", so that one odd batch is no alarm


class Series:
    """The finite values of one metric, oldest first; never empty."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)

    @property
    def early(self) -> float:
        """Median of the first values."""
        return median(self.values[:RECENT])

    @property
    def recent(self) -> float:
        """Median of the last values."""
        return median(self.values[-RECENT:])

    @property
    def recent_mean(self) -> float:
        """Mean of the last values, for shares of small batches, which are 0 most of the time."""
        return fmean(self.values[-RECENT:])

    @property
    def shows_a_trend(self) -> bool:
        """Whether there are enough values to compare early with recent ones."""
        return len(self.values) >= 2 * RECENT

    def settled(self) -> Series:
        """Without the first value, which holds the start-up of the data loader."""
        return Series(self.values[1:] or self.values)


class History:
    """The logged steps of a run."""

    def __init__(self, metrics: Sequence[Mapping[str, float]]) -> None:
        self.rows = metrics

    @property
    def last_step(self) -> float:
        """The step that was logged last; 0 before the first."""
        return max((row.get("step", 0) for row in self.rows), default=0)

    def seconds(self, batch_size: int) -> float:
        """How long training took, from the speed of every logged step; probes do not count."""
        total, before = 0.0, 0.0
        for row in self.rows:
            speed = row.get("images_per_second", math.nan)
            if math.isfinite(speed) and speed > 0:
                total += max(0.0, row["step"] - before) * batch_size / speed
                before = row["step"]
        return total

    def names(self) -> set[str]:
        """All metrics that were ever logged."""
        return {name for row in self.rows for name in row}

    def of(self, name: str) -> Series | None:
        """One metric, or nothing when it has no finite value."""
        values = [row[name] for row in self.rows if math.isfinite(row.get(name, math.nan))]
        return Series(values) if values else None

    def points(self, name: str) -> list[tuple[int, float]]:
        """Step and value of one metric, values that are not finite included."""
        return [(int(row["step"]), row[name]) for row in self.rows if name in row]

    def broken_since(self, name: str) -> int | None:
        """The step from which on a metric is infinite or not a number, to the end."""
        since = None
        for step, value in reversed(self.points(name)):
            if math.isfinite(value):
                break
            since = step
        return since

    def is_before_epoch(self, epoch: float) -> bool:
        """Whether the last logged step is not past ``epoch``; true when epochs are not logged."""
        epochs = self.of("epoch")
        return epochs is None or epochs.values[-1] <= epoch
