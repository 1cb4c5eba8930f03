"""What a logged metric is called, where it belongs, what it means and whether it is healthy.

Reports show every metric a run has logged. Those of all runs stand in
``common_metrics.py``; a method brings its own (``MethodConfig.metrics``), or
another entry for a common one. What nobody explains is shown under "other".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from clove_ssl.runs.history import History, Series

Group = Literal["loss", "matching", "features", "probes", "optimisation", "throughput", "other"]

GROUPS: dict[Group, str] = {
    "loss": "Loss",
    "matching": "Matching",
    "features": "Features",
    "probes": "Probes over time",
    "optimisation": "Optimisation",
    "throughput": "Throughput",
    "other": "Other metrics",
}
POSITION = frozenset({"step", "epoch"})
"""Keys of a logged step that say where it is, not how it went."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the metrics of a run are compared with, whatever its method."""

    min_std: float = 0.2
    min_rank: float = 4.0
    max_data_wait: float = 0.1
    warmup_epochs: float = 0.0
    total_steps: int | None = None  # none where that is not known yet

    def is_early(self, series: Series, history: History) -> bool:
        """Whether a run has not gone on long enough for a metric to mean anything."""
        tenth = (self.total_steps or 0) / 10
        return (
            not series.shows_a_trend
            or history.last_step < tenth
            or history.is_before_epoch(self.warmup_epochs)
        )


Level = Literal["good", "look", "bad"]
Verdict = tuple[Level, str]
Judge = Callable[[Series, History, Limits], Verdict | None]
"""Is a metric healthy, in plain words? Gets its values, the whole history for comparisons, and the
limits of the run; nothing where there is nothing to say."""


@dataclass(frozen=True)
class Metric:
    """One metric of a logged step."""

    name: str
    title: str
    group: Group
    meaning: str
    is_share: bool = False  # a number from 0 to 1 that reads better in percent
    judge: Judge | None = None
    distance_from: str = ""  # what the loss is that far above or below; said with the final loss

    @property
    def unit(self) -> str:
        """What stands behind a shown value."""
        return " %" if self.is_share else ""

    def shown(self, value: float) -> float:
        """The value in the unit it is shown in."""
        return 100 * value if self.is_share else value


class MetricTable:
    """Metrics by name, in the order in which they are read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        # A later entry takes the place of an earlier one of the same name.
        self._known = {metric.name: metric for metric in metrics}

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._known.values())

    def of(self, name: str) -> Metric:
        """The entry of a metric; an unknown one gets a plain entry under "other"."""
        plain = Metric(name, name.replace("_", " "), "other", "A metric this method logs.")
        return self._known.get(name, plain)

    def in_reading_order(self, names: set[str]) -> list[Metric]:
        """By group; known metrics in the order of the table, then all others by name."""
        known = [metric for name, metric in self._known.items() if name in names]
        others = [self.of(name) for name in sorted(names.difference(self._known))]
        order = list(GROUPS)
        return sorted(known + others, key=lambda metric: order.index(metric.group))


def readable(value: float) -> str:
    """A number as a person reads it: 12,345 or 98.32 or 0.045 or 2e-05."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """A share as a person reads it."""
    return f"{100 * share:.3g} %"
