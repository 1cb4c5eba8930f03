"""The figures of runs as cards: a curve with a line per run, its last values, what to think of it.

Curves are drawn here once, and again by the page's script when runs are switched on and off; it
gets the same thinned points, with nothing where a value is infinite or not a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from clove_ssl.report.curves import Point, draw_curves, is_drawable, thinned
from clove_ssl.report.runs import ReportedRun
from clove_ssl.runs.figures import GROUPS, POSITION, Figure, figure, in_reading_order, readable
from clove_ssl.runs.hints import Hint
from clove_ssl.runs.history import Series

Sections = list[tuple[str, list["Card"]]]


@dataclass(frozen=True)
class Reading:
    """One figure of one run."""

    run: ReportedRun
    points: Sequence[Point]
    last: str
    span: str
    gaps: int  # logged values that are infinite or not a number
    hint: Hint | None


@dataclass(frozen=True)
class Card:
    """One figure of all runs that have it."""

    figure: Figure
    readings: Sequence[Reading]
    curve: Markup
    number: int  # of the curve, for the script

    def points(self) -> dict[str, Any]:
        """What the script needs to draw the curve again."""
        series = {
            str(reading.run.number): [_compact(point) for point in thinned(reading.points)]
            for reading in self.readings
        }
        return {"unit": self.figure.unit, "series": series}


def card_sections(
    runs: Sequence[ReportedRun], *, first: int = 0, prefix: str = "", least: int = 1
) -> Sections:
    """Cards of all figures by group, without empty groups; curves count from ``first``.

    Figures that no run has logged ``least`` times are left out.
    """
    logged: set[str] = set().union(*(run.history.names() for run in runs))
    often = {
        name
        for name in logged - POSITION
        if max(len(run.history.points(name)) for run in runs) >= least
    }
    names = in_reading_order(often)
    by_group = {key: [name for name in names if figure(name).group == key] for key in GROUPS}
    sections: Sections = []
    for key, members in by_group.items():
        if members:
            start = first + sum(len(cards) for _, cards in sections)
            cards = [_card(figure(name), runs, start + place) for place, name in enumerate(members)]
            sections.append((prefix + GROUPS[key], cards))
    return sections


def _card(shown: Figure, runs: Sequence[ReportedRun], number: int) -> Card:
    readings = [_reading(shown, run) for run in runs if run.history.points(shown.name)]
    last = "; ".join(f"{each.run.name} {each.last}. {each.span}" for each in readings)
    label = f"{shown.title} over the steps, last of {last}"
    curve = draw_curves({each.run.number: each.points for each in readings}, label, number=number)
    return Card(shown, readings, curve, number)


def _reading(shown: Figure, run: ReportedRun) -> Reading:
    points = [(step, shown.shown(value)) for step, value in run.history.points(shown.name)]
    series = run.history.of(shown.name)
    return Reading(
        run=run,
        points=points,
        last=readable(points[-1][1]) + shown.unit,
        span=_span(shown, series),
        gaps=len(points) - (len(series.values) if series else 0),
        hint=next((hint for hint in run.hints if hint.metric == shown.name), None),
    )


def _span(shown: Figure, series: Series | None) -> str:
    if series is None:
        return ""
    low, high = (readable(shown.shown(choose(series.values))) for choose in (min, max))
    return f"Always {low}{shown.unit}" if low == high else f"Range {low} to {high}{shown.unit}"


def _compact(point: Point) -> tuple[int, float | None]:
    step, value = point
    return step, float(f"{value:.6g}") if is_drawable(value) else None
