"""Scores over something that grows, such as labels or seconds, as SVG that needs nothing else.

The lower axis is logarithmic. A line joins the means of a series, small dots are its single
values. Coordinates are SVG units, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from clove_ssl.report.curves import COLOURS, Axis, tick_labels, ticks, value_range

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 40, 46
ROW = 20  # of the legend
APART = 34  # that labels of the lower axis need
_STYLE = """
  .series { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif;
    --ink: #1d2327; --rule: #dcdfdc;
    --c0: #0b6e75; --c1: #c2410c; --c2: #6d3bbf; --c3: #2f7d32;
    --c4: #b4236a; --c5: #1f5fbf; --c6: #8a6d00; --c7: #5c666d; }
  @media (prefers-color-scheme: dark) {
    .series { --ink: #e6e9e7; --rule: #343c40;
      --c0: #58c4c9; --c1: #ff9d66; --c2: #c3a3ff; --c3: #8bd48e;
      --c4: #ff8fc0; --c5: #86b6ff; --c6: #e0c558; --c7: #b4bec4; }
  }
  .series text { fill: var(--ink); }
  .series .rule { stroke: var(--rule); }
  .series .mean { fill: none; stroke: var(--own); stroke-width: 2; stroke-linejoin: round; }
  .series .point { fill: var(--own); }
  .series .run { fill: var(--own); opacity: .45; }
"""


@dataclass(frozen=True)
class SeriesPoint:
    """What was measured at one place of the lower axis."""

    across: float  # above 0
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: tuple[SeriesPoint, ...]  # from left to right

    @property
    def measured(self) -> tuple[SeriesPoint, ...]:
        """The points that have a value."""
        return tuple(point for point in self.points if point.values)


def paint_series(series: Sequence[Series], *, title: str, across: str) -> Markup | None:
    """A line for each, ``across`` says over what; nothing where nothing is measured yet."""
    shown = [line for line in series if line.measured]
    if not shown:
        return None
    x, y = _axes(shown)
    own_colours = {line.name: number % COLOURS for number, line in enumerate(series)}
    parts = [_rules(y), _lower_axis(x, shown, across)]
    for number, line in enumerate(shown):
        parts.append(_line(line, x, y, own_colours[line.name]))
        parts.append(_entry(line.name, HEIGHT + ROW * number, own_colours[line.name]))
    height = HEIGHT + ROW * len(shown)
    return Markup(
        '<svg class="series" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" '
        'width="{}" role="img" aria-label="{}"><style>{}</style>'
        '<text x="8" y="18" font-weight="600">{}</text>{}</svg>'
    ).format(WIDTH, height, WIDTH, title, Markup(_STYLE), title, Markup("").join(parts))


def _axes(lines: Sequence[Series]) -> tuple[Axis, Axis]:
    """Logarithms of the places, and values."""
    points = [point for line in lines for point in line.measured]
    places = [math.log10(point.across) for point in points]
    low, high = min(places), max(places)
    if low == high:
        low, high = low - 0.5, high + 0.5
    bottom, top = value_range([value for point in points for value in point.values])
    x = Axis(low, high, LEFT + 12, WIDTH - RIGHT - 12)
    return x, Axis(bottom, top, HEIGHT - BOTTOM, TOP)


def _rules(y: Axis) -> Markup:
    """Lines and labels of the scores."""
    line = Markup(
        '<line class="rule" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        '<text x="{text}" y="{base:.1f}" text-anchor="end">{label}</text>'
    )
    places = ticks(y.low, y.high)
    return Markup("").join(
        line.format(left=LEFT, right=WIDTH - RIGHT, text=LEFT - 6, y=at, base=at + 4, label=label)
        for at, label in zip(map(y.place, places), tick_labels(places), strict=True)
    )


def _lower_axis(x: Axis, lines: Sequence[Series], name: str) -> Markup:
    """The places that were measured, where there is room for them, and the name."""
    text = Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
    parts, last = [], -math.inf
    for across in sorted({point.across for line in lines for point in line.measured}):
        place = x.place(math.log10(across))
        if place - last >= APART:
            parts.append(text.format(place, HEIGHT - BOTTOM + 18, f"{across:,.10g}"))
            last = place
    middle = (x.start + x.end) / 2
    parts.append(text.format(middle, HEIGHT - BOTTOM + 36, f"{name} (logarithmic)"))
    return Markup("").join(parts)


def _line(line: Series, x: Axis, y: Axis, colour: int) -> Markup:
    """Means, joined, and the values behind them."""
    dot = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
    parts, path = [], []
    for point in line.measured:
        across, up = x.place(math.log10(point.across)), y.place(point.mean)
        path.append(f"{across:.1f} {up:.1f}")
        parts.append(dot.format("point", across, up, 4))
        if len(point.values) > 1:
            parts += [dot.format("run", across, y.place(v), 2.5) for v in point.values]
    shape = Markup('<g style="--own: var(--c{})"><path class="mean" d="M{}"/>{}</g>')
    return shape.format(colour, "L".join(path), Markup("").join(parts))


def _entry(name: str, top: float, colour: int) -> Markup:
    """A row of the legend."""
    return Markup(
        '<g style="--own: var(--c{c})"><path class="mean" d="M{left} {y}h24"/>'
        '<circle class="point" cx="{middle}" cy="{y}" r="4"/>'
        '<text x="{text}" y="{base}">{name}</text></g>'
    ).format(
        c=colour, left=LEFT, middle=LEFT + 12, text=LEFT + 32, y=top + 4, base=top + 8, name=name
    )
