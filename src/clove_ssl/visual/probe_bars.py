"""Bars that compare probed backbones; the page draws them with plain HTML boxes.

Only scores on the same data at the same image size are put side by side.
Positions are percent of the width of the chart, scores are percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """The score of one backbone."""

    name: str
    stages: str
    miou: float
    accuracy: float
    low: float
    high: float
    length: float  # of the bar
    whisker: tuple[float, float]  # start and length of the interval


@dataclass(frozen=True)
class BarChart:
    """All backbones that were scored on the same images."""

    title: str
    bars: tuple[Bar, ...]


def bar_charts(probes: Sequence[Mapping[str, Any]]) -> list[BarChart]:
    """One chart per kind of data, in the order of ``probes.json``."""
    charts: dict[str, list[Mapping[str, Any]]] = {}
    for probe in probes:
        size = f", {probe['size']} px" if "size" in probe else ""
        charts.setdefault(f"{probe['data']}{size}", []).append(probe)
    return [BarChart(title, _bars(members)) for title, members in charts.items()]


def _bars(probes: Sequence[Mapping[str, Any]]) -> tuple[Bar, ...]:
    """The chart ends at the largest value, so that small scores can still be compared."""
    full = max(max(probe["miou"], *probe["interval"]) for probe in probes) or 1.0
    return tuple(_bar(probe, full) for probe in probes)


def _bar(probe: Mapping[str, Any], full: float) -> Bar:
    low, high = probe["interval"]
    return Bar(
        name=probe["backbone"],
        stages=", ".join(probe.get("stages", ())),
        miou=100 * probe["miou"],
        accuracy=100 * probe["accuracy"],
        low=100 * low,
        high=100 * high,
        length=100 * probe["miou"] / full,
        whisker=(100 * low / full, 100 * (high - low) / full),
    )
