"""Small curves as inline SVG, without a plotting library; they can be read without scripts.

Colours come from the style sheet of the page, so that a curve follows its light
or dark mode. Points are (step, value); a value that is infinite or not a number
is a gap in the line. Picture coordinates are SVG units, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Point = tuple[int, float]

MOST_POINTS = 400
FEW = 30  # points of a line that are marked one by one
WIDTH, HEIGHT = 360, 170
TOP, RIGHT, BOTTOM = 10, 14, 24
COLOURS = 8  # runs that have a colour of their own; the ninth looks like the first
LETTER = 7.2  # width of a digit of the tick labels

EMPTY = Markup('<p class="empty">No value to draw yet.</p>')


@dataclass(frozen=True)
class Axis:
    """Maps values from ``low`` to ``high`` onto picture coordinates ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The picture coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class Axes:
    """Steps to the right, values upwards."""

    x: Axis
    y: Axis
    x_ticks: Sequence[float]
    y_ticks: Sequence[float]

    @classmethod
    def around(cls, series: Sequence[Sequence[Point]]) -> Axes:
        """Axes on which all points of some lines lie, of which one has a value at least."""
        values = [value for points in series for _, value in points if is_drawable(value)]
        low, high = value_range(values)
        y_ticks = ticks(low, high)
        last = max(points[-1][0] for points in series)
        left = 8 + LETTER * max(map(len, tick_labels(y_ticks)))
        x = Axis(0, max(1, last), left, WIDTH - RIGHT)
        return cls(x, Axis(low, high, HEIGHT - BOTTOM, TOP), _step_ticks(last), y_ticks)

    def painted(self) -> Markup:
        """Lines and labels of the ticks."""
        parts = [
            _horizontal_lines(self.y, self.x, self.y_ticks, tick_labels(self.y_ticks)),
            _step_labels(self.x, self.x_ticks),
        ]
        return Markup('<g class="axes">{}</g>').format(Markup("").join(parts))


def paint_curves(
    series: Mapping[int, Sequence[Point]], label: str, *, number: int | None = None
) -> Markup:
    """One metric of several runs, a line for each in the colour of its number.

    A page whose script knows the points as curve ``number`` shows the values that one points at.
    """
    drawable = {run: points for run, points in series.items() if _has_values(points)}
    if not drawable:
        return EMPTY
    axes = Axes.around(list(drawable.values()))
    lines = [_line(points, axes, run) for run, points in drawable.items()]
    guide = Markup('<g class="guide"></g>')
    return _picture([axes.painted(), *lines, guide], label, number=number)


def is_drawable(value: float) -> bool:
    """Whether a value is a number, and small enough to compute with."""
    return abs(value) < 1e300


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most ``most`` points that keep the ends, every spike and every gap."""
    if len(points) <= most:
        return list(points)
    buckets = (most - 2) // 3
    kept = {0, len(points) - 1}
    for number in range(buckets):
        start, end = (len(points) * edge // buckets for edge in (number, number + 1))
        kept |= _landmarks(points, range(start, end))
    return [points[index] for index in sorted(kept)]


def value_range(values: Sequence[float]) -> tuple[float, float]:
    """A range with some air around the values; it does not go below 0 without need."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if size < 1e-300:
        return 0.0, 1.0
    if high - low < 1e-6 * size:  # float noise around a constant
        return low - 0.1 * size, high + 0.1 * size
    air = 0.05 * (high - low)
    return (max(0.0, low - air) if low >= 0 else low - air), high + air


def ticks(low: float, high: float) -> list[float]:
    """Two to seven round numbers between two values: multiples of 1, 2 or 5 times 10^n.

    None where there is none: a damaged file may hold numbers beyond all others.
    """
    smallest = 0.15 * (high - low)
    if not 0 < smallest < 1e307:
        return []
    power = 10.0 ** math.floor(math.log10(smallest))
    gap = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= smallest)
    first, last = math.ceil(low / gap - 1e-9), math.floor(high / gap + 1e-9)
    return [index * gap for index in range(first, last + 1)]


def tick_labels(positions: Sequence[float]) -> list[str]:
    """Labels with as many digits as tell neighbours apart: 0.95, 1.00 or 5k, 10k."""
    largest = max(map(abs, positions), default=0.0)
    if not 1e-3 <= largest < 1e9:
        return [f"{position:.8g}" for position in positions]
    scale, suffix = (1e6, "M") if largest >= 1e6 else (1e3, "k") if largest >= 1e4 else (1.0, "")
    shown = [position / scale for position in positions]
    gap = min((b - a for a, b in zip(shown, shown[1:], strict=False)), default=1.0)
    decimals = max(0, -math.floor(math.log10(gap * 1.001)))
    return [f"{value:.{decimals}f}{suffix}" if value else "0" for value in shown]


def _has_values(points: Sequence[Point]) -> bool:
    return any(is_drawable(value) for _, value in points)


def _picture(parts: Sequence[Markup], label: str, *, number: int | None = None) -> Markup:
    data = Markup("") if number is None else Markup(' data-curve="{}"').format(number)
    return Markup(
        '<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}"{}>{}</svg>'
    ).format(WIDTH, HEIGHT, label, data, Markup("").join(parts))


def _line(points: Sequence[Point], axes: Axes, run: int) -> Markup:
    """The line of one run; where points are few, each gets a dot."""
    shape = Markup('<path class="line{} run-{}" data-run="{}" d="{}"/>')
    line = shape.format("", run % COLOURS, run, _path(thinned(points), axes))
    if len(points) > FEW:
        return line
    return line + shape.format(" dots", run % COLOURS, run, _path(points, axes, joined=False))


def _landmarks(points: Sequence[Point], indices: range) -> set[int]:
    """The lowest, the highest and the first missing of some points."""
    finite = [index for index in indices if is_drawable(points[index][1])]
    missing = [index for index in indices if not is_drawable(points[index][1])]
    extremes = {
        choose(finite, key=lambda index: points[index][1]) for choose in (min, max) if finite
    }
    return extremes | set(missing[:1])


def _step_ticks(last: int) -> list[float]:
    return [tick for tick in ticks(0, max(1, last)) if tick == round(tick)]


def _horizontal_lines(
    y_axis: Axis, x_axis: Axis, positions: Iterable[float], labels: Iterable[str]
) -> Markup:
    line = Markup(
        '<line class="grid" x1="{left:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        '<text class="tick" x="{text:.1f}" y="{base:.1f}" text-anchor="end">{label}</text>'
    )
    return Markup("").join(
        line.format(
            left=x_axis.start, right=x_axis.end, y=y, text=x_axis.start - 5, base=y + 4, label=label
        )
        for y, label in zip(map(y_axis.place, positions), labels, strict=True)
    )


def _step_labels(x_axis: Axis, positions: Sequence[float]) -> Markup:
    text = Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')
    labels = tick_labels(positions)
    return Markup("").join(
        text.format(x, HEIGHT - 6, "end" if x > WIDTH - 2 * RIGHT else "middle", label)
        for x, label in zip(map(x_axis.place, positions), labels, strict=True)
    )


def _path(points: Iterable[Point], axes: Axes, *, joined: bool = True) -> str:
    """Lines between neighbours; a point between gaps is drawn by the round cap of ``h0``."""
    commands, pen_down = [], False
    for step, value in points:
        if is_drawable(value):
            place = f"{axes.x.place(step):.1f} {axes.y.place(value):.1f}"
            commands.append(f"L{place}" if pen_down else f"M{place}h0")
        pen_down = joined and is_drawable(value)
    return "".join(commands)
