"""``report.html``: one page about runs that needs no network and no other file.

It can be written at any time: while a run is going, after it was interrupted,
and again when probes or pictures have been added. The page is
``report.html.jinja``; here is what it shows. Runs are told apart by colour, and
switched on and off by a small script (``report.js.jinja``), which also shows the
values that one points at; without it the page can still be read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.report import curves
from clove_ssl.report.cards import card_sections
from clove_ssl.report.config_table import config_differences
from clove_ssl.report.finetuning import ReportTable, finetuning_page, score_tables
from clove_ssl.report.inline_pictures import inline_pictures
from clove_ssl.report.pages import template, write_page
from clove_ssl.report.probe_bars import BarChart, bar_charts
from clove_ssl.report.runs import Facts, ReportedRun, read_runs
from clove_ssl.runs.directory import RunDirectory, read_config
from clove_ssl.runs.hints import Hint, worrying
from clove_ssl.runs.probe_file import read_probes

GEOMETRY = {
    "width": curves.WIDTH,
    "height": curves.HEIGHT,
    "top": curves.TOP,
    "right": curves.RIGHT,
    "bottom": curves.BOTTOM,
    "letter": curves.LETTER,
}


def write_report(run: RunDirectory) -> Path:
    """Write ``report.html`` of a run, whatever kind it is and at any time, and return its path."""
    config = read_config(run)
    if isinstance(config, FinetuneConfig):
        write_page(run, finetuning_page(run, config))
    else:
        write_page(run, render_report([run]))
    return run.report


def render_report(directories: Sequence[RunDirectory], *, live: bool = False) -> str:
    """The page about one or several runs as text; ``live`` makes it ask its server for news."""
    runs = read_runs(directories)
    pretrained = [run for run in runs if not run.is_finetuning]
    finetuned = [run for run in runs if run.is_finetuning]
    sections = card_sections(pretrained)
    curves_before = sum(len(cards) for _, cards in sections)
    # Scores are logged once, at the end, and stand in tables.
    later = card_sections(finetuned, first=curves_before, prefix="Fine-tuning: ", least=2)
    cards = [card for _, members in (*sections, *later) for card in members]
    return template("report.html.jinja").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        runs=runs,
        pretrained=pretrained,
        finetuned=finetuned,
        live=live,
        written=time.strftime("%Y-%m-%d %H:%M"),
        summaries=[_side_by_side(group) for group in (pretrained, finetuned) if group],
        differences=[_differences(group) for group in (pretrained, finetuned) if len(group) > 1],
        worries=_worries(pretrained),
        charts=_charts(pretrained),
        pictures={run.number: inline_pictures(run) for run in runs},
        tables={run.number: _score_tables(run) for run in finetuned},
        sections=sections,
        finetuning_sections=later,
        hardware=_columns(runs, [run.hardware() for run in runs]),
        points=[card.points() for card in cards],
        names=[run.name for run in runs],
        steps=[_last_step(run) for run in runs],
        geometry=GEOMETRY,
        colours=curves.COLOURS,
    )


def _side_by_side(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    return _columns(runs, [{**run.facts, "State": run.progress} for run in runs])


def _differences(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    common, partial = config_differences(runs)
    return {"runs": runs, "rows": common, "partial": {"runs": runs, "rows": partial}}


def _columns(runs: Sequence[ReportedRun], facts: Sequence[Facts]) -> dict[str, Any]:
    """Facts as rows, runs as columns."""
    names = dict.fromkeys(name for each in facts for name in each)
    return {
        "runs": runs,
        "rows": [(name, [each.get(name, "–") for each in facts]) for name in names],
    }


def _worries(runs: Sequence[ReportedRun]) -> list[tuple[ReportedRun, str, Hint]]:
    return [(run, hint.metric.title, hint) for run in runs for hint in worrying(run.hints)]


def _charts(runs: Sequence[ReportedRun]) -> list[BarChart]:
    """Probes of all runs; what several files know is shown once."""
    found = [read_probes(run.run) for run in runs]
    entries = {str(sorted(entry.items())): entry for entries in found for entry in entries}
    return bar_charts(list(entries.values()))


def _score_tables(run: ReportedRun) -> Sequence[ReportTable]:
    return score_tables(run.run, run.finetuning) if run.finetuning else ()


def _last_step(run: ReportedRun) -> int:
    return int(run.history.rows[-1]["step"]) if run.history.rows else 0
