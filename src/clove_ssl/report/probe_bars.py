"""Bars that compare probed backbones; the page draws them with plain HTML boxes.

Only figures of one kind, on the same data at the same image size, are put side by
side. Positions are percent of the width of the chart, shares are shown in percent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]
"""An entry of ``probes.json``, as ``runs/probe_file.py`` reads it."""


@dataclass(frozen=True)
class Bar:
    """The figure of one backbone."""

    name: str
    stages: str
    value: str
    note: str  # interval, chance level and what else was measured
    length: float  # of the bar
    whisker: tuple[float, float] | None  # start and length of the interval


@dataclass(frozen=True)
class BarChart:
    """All backbones that were measured on the same images."""

    title: str
    bars: tuple[Bar, ...]


def bar_charts(probes: Sequence[Entry]) -> list[BarChart]:
    """One chart per figure and kind of data, in the order of ``probes.json``."""
    charts: dict[str, list[Entry]] = {}
    for probe in probes:
        size = f", {probe['size']} px" if "size" in probe else ""
        title = f"{probe['title']} on {probe['data']}{size}"
        charts.setdefault(title, []).append(probe)
    return [BarChart(title, _bars(members)) for title, members in charts.items()]


def _bars(probes: Sequence[Entry]) -> tuple[Bar, ...]:
    """The chart ends at the largest value, so that small scores can still be compared."""
    full = max(max(map(abs, (probe["value"], *_interval(probe)))) for probe in probes) or 1.0
    return tuple(_bar(probe, full) for probe in probes)


def _bar(probe: Entry, full: float) -> Bar:
    whisker = None
    if ends := sorted(100 * abs(end) / full for end in _interval(probe)):
        whisker = (ends[0], ends[1] - ends[0])
    return Bar(
        name=probe["backbone"],
        stages=", ".join(probe.get("stages", ())),
        value=_text(probe["value"], probe),
        note=_note(probe),
        length=100 * abs(probe["value"]) / full,
        whisker=whisker,
    )


def _note(probe: Entry) -> str:
    parts = []
    if _interval(probe):
        parts.append(" to ".join(_text(end, probe) for end in _interval(probe)))
    if probe.get("chance") is not None:
        parts.append(f"chance {_text(probe['chance'], probe)}")
    if "accuracy" in probe:
        parts.append(f"pixel accuracy {100 * probe['accuracy']:.1f} %")
    return ", ".join(parts)


def _interval(probe: Entry) -> Sequence[float]:
    return probe.get("interval") or ()


def _text(value: float, probe: Entry) -> str:
    return f"{100 * value:.1f}" if probe["is_share"] else f"{value:.3g}"
