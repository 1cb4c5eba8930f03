"""The metrics of runs as cards: a curve with a line per run, its last values, what to think of it.

Curves are drawn here once, and again by the page's script when runs are switched on and off; it
gets the same thinned points, with nothing where a value is infinite or not a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from markupsafe import Markup

from clove_ssl.report.curves import Point, is_drawable, paint_curves, thinned
from clove_ssl.report.runs import ReportedRun
from clove_ssl.runs.hints import Hint
from clove_ssl.runs.history import Series
from clove_ssl.runs.metric_table import GROUPS, POSITION, Group, Metric, MetricTable, readable


@dataclass(frozen=True)
class Reading:
    """One metric of one run."""

    run: ReportedRun
    points: Sequence[Point]
    last: str
    span: str
    gaps: int  # logged values that are infinite or not a number
    hint: Hint | None


@dataclass(frozen=True)
class Card:
    """One metric of all runs that have it."""

    metric: Metric
    readings: Sequence[Reading]
    curve: Markup
    number: int  # of the curve, for the script

    def points(self) -> dict[str, Any]:
        """What the script needs to draw the curve again."""
        series = {
            str(reading.run.number): [_compact(point) for point in thinned(reading.points)]
            for reading in self.readings
        }
        return {"unit": self.metric.unit, "series": series}


@dataclass(frozen=True)
class Section:
    """The cards of one group of metrics."""

    title: str
    group: Group
    cards: Sequence[Card]


def card_sections(
    runs: Sequence[ReportedRun], *, first: int = 0, prefix: str = "", least: int = 1
) -> list[Section]:
    """Cards of all metrics by group, without empty groups; curves count from ``first``.

    Metrics that no run has logged ``least`` times are left out. Where two methods explain a name
    differently, the later run's entry counts.
    """
    logged: set[str] = set().union(*(run.history.names() for run in runs))
    often = {
        name
        for name in logged - POSITION
        if max(len(run.history.points(name)) for run in runs) >= least
    }
    table = MetricTable(metric for run in runs for metric in run.metrics)
    cards = [
        _card(metric, runs, number)
        for number, metric in enumerate(table.in_reading_order(often), start=first)
    ]
    groups = groupby(cards, key=lambda card: card.metric.group)
    return [Section(prefix + GROUPS[group], group, list(members)) for group, members in groups]


def _card(metric: Metric, runs: Sequence[ReportedRun], number: int) -> Card:
    readings = [_reading(metric, run) for run in runs if run.history.points(metric.name)]
    last = "; ".join(f"{each.run.name} {each.last}. {each.span}" for each in readings)
    label = f"{metric.title} over the steps, last of {last}"
    curve = paint_curves({each.run.number: each.points for each in readings}, label, number=number)
    return Card(metric, readings, curve, number)


def _reading(metric: Metric, run: ReportedRun) -> Reading:
    points = [(step, metric.shown(value)) for step, value in run.history.points(metric.name)]
    series = run.history.of(metric.name)
    return Reading(
        run=run,
        points=points,
        last=readable(points[-1][1]) + metric.unit,
        span=_span(metric, series),
        gaps=len(points) - (len(series.values) if series else 0),
        hint=next((hint for hint in run.hints if hint.metric.name == metric.name), None),
    )


def _span(metric: Metric, series: Series | None) -> str:
    if series is None:
        return ""
    low, high = (readable(metric.shown(choose(series.values))) for choose in (min, max))
    return f"Always {low}{metric.unit}" if low == high else f"Range {low} to {high}{metric.unit}"


def _compact(point: Point) -> tuple[int, float | None]:
    step, value = point
    return step, float(f"{value:.6g}") if is_drawable(value) else None
