"""``report.html``: one page about runs that needs no network and no other file.

It can be written at any time: while a run is going, after it was interrupted,
and again when probes or pictures have been added. The page is
``report.html.jinja``; here is what it shows. Runs are told apart by colour, and
switched on and off by a small script (``report.js.jinja``), which also shows the
values that one points at; without it the page can still be read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from clove_ssl.atomic import cause, replacing
from clove_ssl.config.files import read_values
from clove_ssl.errors import UserError, escaped
from clove_ssl.report import curves
from clove_ssl.report.cards import card_sections
from clove_ssl.report.facts import Facts, when
from clove_ssl.report.finetuning import protocol_differences, score_boards
from clove_ssl.report.inline_pictures import picture_groups
from clove_ssl.report.probe_bars import BarChart, bar_charts
from clove_ssl.report.runs import ReportedRun, read_runs
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.hints import worrying
from clove_ssl.runs.metric_table import Level
from clove_ssl.runs.probe_file import entries_about, read_probes

GEOMETRY = {
    "width": curves.WIDTH,
    "height": curves.HEIGHT,
    "top": curves.TOP,
    "right": curves.RIGHT,
    "bottom": curves.BOTTOM,
    "letter": curves.LETTER,
}

MAIN_GROUPS = frozenset({"loss", "features", "probes", "other"})
"""Metrics that are shown at once; the others are folded."""
SHOWN_AT_ONCE = 4
"""Curves of such a group that are not folded; the first ones matter most."""

_NOTHING = "–"
_UNIMPORTANT = frozenset({"out"})

Row = tuple[str, list[str]]
"""An option, and its value in every run."""

_FLAG = re.compile(r"--[a-z][a-z._-]*[a-z]")
_COMMAND = re.compile(r"clove [a-z]+ .+?(?=\. |[.,;)]*$|[,;)] )")  # to the end of its sentence
_UNIT = re.compile(r"(?<=\d) (?=%)|(?<=\d) (?=x \d)|(?<=\d x) (?=\d)")


def write_report(run: RunDirectory) -> Path:
    """Write ``report.html`` of a run, whatever kind it is and at any time, and return its path."""
    remedy = "Free some space or make the run directory writable, then: clove report"
    write_file(run.report, render_report([run]), remedy=f"{remedy} {run.path}")
    return run.report


def render_report(directories: Sequence[RunDirectory], *, live: bool = False) -> str:
    """The page about one or several runs as text; ``live`` makes it ask its server for news."""
    runs = read_runs(directories)
    pretrained = [run for run in runs if not run.is_finetuning]
    finetuned = [run for run in runs if run.is_finetuning]
    sections = card_sections(pretrained)
    curves_before = sum(len(section.cards) for section in sections)
    # Scores are logged once, at the end, and stand in tables.
    later = card_sections(finetuned, first=curves_before, prefix="Fine-tuning: ", least=2)
    cards = [card for section in (*sections, *later) for card in section.cards]
    parts: dict[str, Any] = {
        "worries": _worries(runs),
        "boards": score_boards(finetuned),
        "unscored": [run for run in finetuned if not _is_scored(run)],
        "pictures": picture_groups(runs),
        "charts": _charts(runs),
        "sections": [*sections, *later],
        "differences": [_differences(each) for each in (pretrained, finetuned) if len(each) > 1],
    }
    return template("report.html.jinja").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        runs=runs,
        live=live,
        written=time.strftime("%Y-%m-%d %H:%M"),
        summaries=[_side_by_side(group) for group in (pretrained, finetuned) if group],
        contents=_contents(parts),
        protocols=[each for each in map(protocol_differences, finetuned) if each],
        hardware=_columns(runs, [run.hardware() for run in runs]),
        main_groups=MAIN_GROUPS,
        shown_at_once=SHOWN_AT_ONCE,
        narrow_pictures=sum(group.is_narrow for group in parts["pictures"] if group.is_main),
        points=[card.points() for card in cards],
        names=[run.name for run in runs],
        steps=[_last_step(run) for run in runs],
        geometry=GEOMETRY,
        colours=curves.COLOURS,
        **parts,
    )


def _contents(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Anchors and titles of the parts that a page has."""
    optional = [
        ("look", "What to look at", parts["worries"]),
        ("scores", "Scores", parts["boards"] or parts["unscored"]),
        ("pictures", "Pictures", parts["pictures"]),
        ("probes", "Frozen features", parts["charts"]),
        ("curves", "Curves", parts["sections"]),
        ("differences", "Differences", parts["differences"]),
    ]
    there = [(anchor, title) for anchor, title, content in optional if content]
    return [("summary", "Summary"), *there, ("details", "Details")]


def _side_by_side(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    return _columns(runs, [{"State": run.progress, **run.facts} for run in runs])


def _differences(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    common, partial = _config_differences(runs)
    return {"runs": runs, "rows": common, "partial": {"runs": runs, "rows": partial}}


def _config_differences(runs: Sequence[ReportedRun]) -> tuple[list[Row], list[Row]]:
    """The options that differ, in the order of the files: those that all runs have, the others."""
    tables = [dict(_flat(read_values(run.run.config))) for run in runs]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    rows = [(key, [_text(table, key) for table in tables]) for key in keys]
    different = [(key, values) for key, values in rows if len(set(values)) > 1]
    common = [row for row in different if all(row[0] in table for table in tables)]
    return common, [row for row in different if row not in common]


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif prefix or key not in _UNIMPORTANT:
            yield f"{prefix}{key}", value


def _text(table: dict[str, Any], key: str) -> str:
    if key not in table:
        return _NOTHING
    value = table[key]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


def _columns(runs: Sequence[ReportedRun], facts: Sequence[Facts]) -> dict[str, Any]:
    """Facts as rows, runs as columns."""
    names = dict.fromkeys(name for each in facts for name in each)
    return {
        "runs": runs,
        "rows": [(name, [each.get(name, _NOTHING) for each in facts]) for name in names],
    }


def _worries(runs: Sequence[ReportedRun]) -> list[tuple[ReportedRun, Level, str, str]]:
    """All that somebody should act on: what metrics say, then data and files."""
    hints = [
        (run, hint.level, hint.metric.title, hint.text)
        for run in runs
        for hint in worrying(run.hints)
    ]
    others: list[tuple[ReportedRun, Level, str, str]] = [
        (run, "look", title, text) for run in runs for title, text in run.warnings
    ]
    return hints + others


def _charts(runs: Sequence[ReportedRun]) -> list[BarChart]:
    """Probes of all runs; what several files know is shown once."""
    found = [entry for run in runs for entry in read_probes(run.run)]
    entries = list({str(sorted(entry.items(), key=str)): entry for entry in found}.values())
    colours: dict[str, int] = {}
    outdated: list[Mapping[str, Any]] = []
    for run in runs:
        current, earlier = entries_about(run.run, entries)
        colours |= {str(entry["backbone"]): run.number for entry in current}
        outdated += earlier
    marked = [{**entry, "is_outdated": entry in outdated} for entry in entries]
    return bar_charts(marked, colours)


def _is_scored(run: ReportedRun) -> bool:
    return run.run.scores.is_file() or run.run.summary.is_file()


def _last_step(run: ReportedRun) -> int:
    return int(run.history.rows[-1]["step"]) if run.history.rows else 0


def template(name: str) -> jinja2.Template:
    """A page of this folder; a value that it names and is not given is an error."""
    return _environment().get_template(name)


def get_ready() -> None:
    """Read all pages now, since a run writes its report at the end, hours later.

    By then the installation may have been replaced, or be closed to the user of this process.
    """
    for name in _environment().list_templates(extensions=["jinja"]):
        template(name)


@cache  # it remembers its pages, and reading one takes longer than filling it
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("clove_ssl.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark_flags"] = _mark_flags
    environment.filters["mark_commands"] = _mark_commands
    environment.filters["when"] = when
    return environment


def write_file(path: Path, text: str, *, remedy: str = "Give --out another place.") -> None:
    """Write a page; ``remedy`` is what to do when that fails."""
    try:
        with replacing(path) as file:
            file.write(encoded(text))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {cause(error)}. {remedy}") from error


def encoded(text: str) -> bytes:
    """A page as bytes."""
    # A command line may hold a file name that is no text, which UTF-8 refuses to write.
    return escaped(text).encode()


def _mark_flags(text: str) -> Markup:
    """Set options of the command line apart, and keep them and numbers with a unit on one line."""
    tied = _UNIT.sub("\N{NO-BREAK SPACE}", text)
    return Markup(_FLAG.sub(r'<code class="flag">\g<0></code>', str(escape(tied))))


def _mark_commands(text: str) -> Markup:
    """Set whole commands apart in a text that says what to type, and other options as well."""
    parts, end = [], 0
    for found in _COMMAND.finditer(text):
        whole = _FLAG.sub(r'<span class="flag">\g<0></span>', str(escape(found.group())))
        parts += [_mark_flags(text[end : found.start()]), Markup(f"<code>{whole}</code>")]
        end = found.end()
    return Markup("").join([*parts, _mark_flags(text[end:])])
