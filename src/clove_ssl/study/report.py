"""``report.html`` of a study, its tables in three formats, and its plots."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from clove_ssl.atomic import cause, write_text
from clove_ssl.errors import UserError
from clove_ssl.report.pages import template
from clove_ssl.study.bars import draw_bars
from clove_ssl.study.folder import StudyFolder
from clove_ssl.study.tables import (
    LEGEND,
    PAIRED_HEADER,
    PAIRED_LEGEND,
    RUNS_HEADER,
    RUNS_LEGEND,
    PairedRow,
    PretrainingRow,
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
        _write_plots(folder, page.tables)
        write_text(folder.report, render_study_report(page))
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {folder.path}: {cause(error)}. Free some space, then "
            f"start the study again with --report."
        ) from None


def render_study_report(page: StudyPage) -> str:
    """The page as text."""
    shown = [
        (table, header(table), [cells(table, row) for row in table.rows], draw_bars(table))
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


def _write_plots(folder: StudyFolder, tables: Sequence[StudyTable]) -> None:
    folder.plots.mkdir(parents=True, exist_ok=True)
    for table in tables:
        plot = draw_bars(table)
        if plot is not None:
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", table.identity.removeprefix("study:"))
            write_text(folder.plots / f"{name}.svg", f"{plot}\n")
