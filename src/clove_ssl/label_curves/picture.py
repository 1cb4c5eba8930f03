"""The curves as SVG that needs nothing else: labelled images to the right, scores upwards.

The axis of images is logarithmic. A line joins the means of a backbone, small dots are its single
runs. Coordinates are SVG units, y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from clove_ssl.label_curves.results import LabelCurve, LabelLine
from clove_ssl.report.curves import COLOURS, Axis, tick_labels, ticks, value_range

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 40, 46
ROW = 20  # of the legend
APART = 34  # that labels of the lower axis need
_STYLE = """
  .labels-curve { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif;
    --ink: #1d2327; --rule: #dcdfdc;
    --c0: #0b6e75; --c1: #c2410c; --c2: #6d3bbf; --c3: #2f7d32;
    --c4: #b4236a; --c5: #1f5fbf; --c6: #8a6d00; --c7: #5c666d; }
  @media (prefers-color-scheme: dark) {
    .labels-curve { --ink: #e6e9e7; --rule: #343c40;
      --c0: #58c4c9; --c1: #ff9d66; --c2: #c3a3ff; --c3: #8bd48e;
      --c4: #ff8fc0; --c5: #86b6ff; --c6: #e0c558; --c7: #b4bec4; }
  }
  .labels-curve text { fill: var(--ink); }
  .labels-curve .rule { stroke: var(--rule); }
  .labels-curve .mean { fill: none; stroke: var(--own); stroke-width: 2; stroke-linejoin: round; }
  .labels-curve .point { fill: var(--own); }
  .labels-curve .run { fill: var(--own); opacity: .45; }
"""


def draw_curves(curve: LabelCurve, *, title: str) -> Markup | None:
    """One line for every backbone; nothing where nothing is measured yet."""
    shown = [line for line in curve.lines if line.measured]
    if not shown:
        return None
    x, y = _axes(shown)
    own_colours = {line.name: number % COLOURS for number, line in enumerate(curve.lines)}
    parts = [_rules(x, y), _images(x, shown)]
    for number, line in enumerate(shown):
        parts.append(_line(line, x, y, own_colours[line.name]))
        parts.append(_entry(line.name, HEIGHT + ROW * number, own_colours[line.name]))
    height = HEIGHT + ROW * len(shown)
    return Markup(
        '<svg class="labels-curve" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" '
        'width="{}" role="img" aria-label="{}"><style>{}</style>'
        '<text x="8" y="18" font-weight="600">{}</text>{}</svg>'
    ).format(WIDTH, height, WIDTH, title, Markup(_STYLE), title, Markup("").join(parts))


def _axes(lines: Sequence[LabelLine]) -> tuple[Axis, Axis]:
    """Logarithms of numbers of images, and scores in percent."""
    points = [point for line in lines for point in line.measured]
    images = [math.log10(point.images) for point in points]
    low, high = min(images), max(images)
    if low == high:
        low, high = low - 0.5, high + 0.5
    bottom, top = value_range([100 * value for point in points for value in point.values])
    x = Axis(low, high, LEFT + 12, WIDTH - RIGHT - 12)
    return x, Axis(bottom, top, HEIGHT - BOTTOM, TOP)


def _rules(x: Axis, y: Axis) -> Markup:
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


def _images(x: Axis, lines: Sequence[LabelLine]) -> Markup:
    """The numbers of images that were measured, where there is room for them, and the name."""
    text = Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
    parts, last = [], -math.inf
    for images in sorted({point.images for line in lines for point in line.measured}):
        place = x.place(math.log10(images))
        if place - last >= APART:
            parts.append(text.format(place, HEIGHT - BOTTOM + 18, f"{images:,}"))
            last = place
    middle = (x.start + x.end) / 2
    parts.append(text.format(middle, HEIGHT - BOTTOM + 36, "labelled images (logarithmic)"))
    return Markup("").join(parts)


def _line(line: LabelLine, x: Axis, y: Axis, colour: int) -> Markup:
    """Means, joined, and the runs behind them."""
    dot = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"/>')
    parts, path = [], []
    for point in line.measured:
        across, up = x.place(math.log10(point.images)), y.place(100 * point.mean)
        path.append(f"{across:.1f} {up:.1f}")
        parts.append(dot.format("point", across, up, 4))
        if len(point.values) > 1:
            parts += [dot.format("run", across, y.place(100 * v), 2.5) for v in point.values]
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
