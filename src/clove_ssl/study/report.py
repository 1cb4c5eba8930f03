"""``report.html`` of a study, its tables in three formats, and its plots.

Plots are SVG that needs nothing else. A group of bars is a row: the paper's score, where there is
one, above ours with a whisker of two standard errors; coordinates are SVG units, y downwards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from markupsafe import Markup

from clove_ssl.atomic import cause, write_text
from clove_ssl.errors import UserError
from clove_ssl.report.curves import Axis, tick_labels, ticks
from clove_ssl.report.page import template
from clove_ssl.study.cells import StudyFolder
from clove_ssl.study.tables import (
    LEGEND,
    PAIRED_HEADER,
    PAIRED_LEGEND,
    RUNS_HEADER,
    RUNS_LEGEND,
    OurScore,
    PairedRow,
    PretrainingRow,
    StudyRow,
    StudyTable,
    cells,
    csv_text,
    header,
    latex,
    markdown,
    paired_cells,
    run_cells,
)


@dataclass(frozen=True)
class StudyPage:
    """What the report shows."""

    title: str
    progress: str
    tables: Sequence[StudyTable]
    curves: Mapping[str, Markup]  # scores over budgets, by the names of their files
    paired: Sequence[PairedRow]
    runs: Sequence[PretrainingRow]
    unmeasured: Sequence[str]  # tables of the paper that the study has no cells for
    waiting: Sequence[tuple[str, str]]  # cells that are not done, and why
    study: str  # the text of study.yaml


def write_study_report(folder: StudyFolder, page: StudyPage) -> None:
    """Write the page, ``tables.md``, ``tables.csv``, ``tables.tex`` and ``plots/``."""
    try:
        tables = markdown(page.tables, page.paired, page.runs, title=page.title)
        write_text(folder.tables("md"), tables)
        write_text(folder.tables("csv"), csv_text(page.tables))
        write_text(folder.tables("tex"), latex(page.tables))
        _write_plots(folder, page)
        write_text(folder.report, render_study_report(page))
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {folder.path}: {cause(error)}. Free some space, then "
            f"start the study again with --report."
        ) from None


def render_study_report(page: StudyPage) -> str:
    """The page as text."""
    shown = [
        (table, header(table), [cells(table, row) for row in table.rows], paint_bars(table))
        for table in page.tables
    ]
    return template("study.html.jinja").render(
        page=page,
        tables=shown,
        legend=LEGEND,
        paired_legend=PAIRED_LEGEND,
        paired_header=PAIRED_HEADER,
        paired=[paired_cells(row) for row in page.paired],
        runs_legend=RUNS_LEGEND,
        runs_header=RUNS_HEADER,
        runs=[run_cells(row) for row in page.runs],
        written=time.strftime("%Y-%m-%d %H:%M"),
    )


def _write_plots(folder: StudyFolder, page: StudyPage) -> None:
    folder.plots.mkdir(parents=True, exist_ok=True)
    bars = {table.identity.removeprefix("study:"): paint_bars(table) for table in page.tables}
    for name, plot in {**bars, **page.curves}.items():
        if plot is not None:
            file = re.sub(r"[^A-Za-z0-9.+-]+", "-", name)
            write_text(folder.plots / f"{file}.svg", f"{plot}\n")


WIDTH, RIGHT, TOP, BOTTOM = 640, 96, 30, 26
BAR, GAP = 14, 12
LETTER = 7.0
_STYLE = """
  .study-bars { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif;
    --ink: #1d2327; --rule: #dcdfdc; --ours: #0b6e75; --paper: #b9c2c0; }
  @media (prefers-color-scheme: dark) {
    .study-bars { --ink: #e6e9e7; --rule: #343c40; --ours: #58c4c9; --paper: #5d686b; }
  }
  .study-bars text { fill: var(--ink); }
  .study-bars .rule { stroke: var(--rule); }
  .study-bars .ours { fill: var(--ours); }
  .study-bars .paper { fill: var(--paper); }
  .study-bars .whisker { stroke: var(--ink); stroke-width: 1.5; fill: none; }
"""


def paint_bars(table: StudyTable) -> Markup | None:
    """The first score of a table, row by row; nothing where nothing is measured."""
    rows = [row for row in table.rows if row.pairs[0].ours is not None]
    if not rows:
        return None
    heights = [BAR * _bars_of(row) + GAP for row in rows]
    left = 12 + LETTER * max(len(row.name) for row in rows)
    axis = Axis(0, _longest(rows), left, WIDTH - RIGHT)
    bottom = TOP + sum(heights)
    parts = [_scale(axis, bottom)]
    tops = accumulate(heights, initial=TOP)
    parts += [_group(row, axis, top) for row, top in zip(rows, tops, strict=False)]
    grey = " (grey: the paper's)" if table.has_paper else ""
    what = f"{table.headings[0]}: {table.title}{grey}"
    return Markup(
        '<svg class="study-bars" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" '
        'width="{}" role="img" aria-label="{}"><style>{}</style>'
        '<text x="8" y="16" font-weight="600">{}</text>{}</svg>'
    ).format(WIDTH, bottom + BOTTOM, WIDTH, what, Markup(_STYLE), what, Markup("").join(parts))


def _bars_of(row: StudyRow) -> int:
    return 2 if row.pairs[0].paper is not None else 1


def _longest(rows: list[StudyRow]) -> float:
    """The right end of the scale: the largest value with its whisker."""
    pairs = [row.pairs[0] for row in rows]
    ends = [pair.paper for pair in pairs if pair.paper is not None]
    ends += [_whisker(pair.ours)[1] for pair in pairs if pair.ours]
    return max(*ends, 1e-9) * 1.02


def _whisker(ours: OurScore) -> tuple[float, float]:
    reach = 2 * (ours.standard_error or 0.0)
    return ours.mean - reach, ours.mean + reach


def _scale(axis: Axis, bottom: float) -> Markup:
    line = Markup(
        '<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        '<text x="{x:.1f}" y="{base}" text-anchor="middle">{label}</text>'
    )
    places = ticks(axis.low, axis.high)
    return Markup("").join(
        line.format(x=axis.place(place), top=TOP - 4, bottom=bottom, base=bottom + 16, label=label)
        for place, label in zip(places, tick_labels(places), strict=True)
    )


def _group(row: StudyRow, axis: Axis, top: float) -> Markup:
    """The bars of one row, with its name before them."""
    pair = row.pairs[0]
    assert pair.ours is not None
    parts, y = [], top
    if pair.paper is not None:
        parts.append(_bar("paper", axis, pair.paper, y))
        y += BAR
    low, high = (max(axis.low, end) for end in _whisker(pair.ours))
    parts.append(_bar("ours", axis, pair.ours.mean, y))
    if pair.ours.standard_error is not None:
        parts.append(_whisker_line(axis.place(low), axis.place(high), y + (BAR - 3) / 2))
    text = Markup('<text x="{:.1f}" y="{:.1f}"{}>{}</text>')
    end = max(axis.place(high), axis.place(pair.ours.mean)) + 5
    parts.append(text.format(end, y + 10, "", pair.ours.shown()))
    middle = (top + y + BAR) / 2 + 3
    parts.append(text.format(axis.start - 6, middle, Markup(' text-anchor="end"'), row.name))
    return Markup("").join(parts)


def _bar(kind: str, axis: Axis, value: float, y: float) -> Markup:
    width = max(0.0, axis.place(value) - axis.start)
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="2"/>'
    ).format(kind, axis.start, y, width, BAR - 3)


def _whisker_line(start: float, end: float, y: float) -> Markup:
    return Markup(
        '<path class="whisker" d="M{a:.1f} {y:.1f}H{b:.1f}M{a:.1f} {t:.1f}v6M{b:.1f} {t:.1f}v6"/>'
    ).format(a=start, b=end, y=y, t=y - 3)
