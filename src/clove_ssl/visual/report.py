"""``report.html``: one page about a run that needs no network and no other file.

It can be written at any time: while the run is going, after it was interrupted,
and again when probes have been added. The page is ``report.html.jinja``; here
is what it shows.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from clove_ssl.atomic import cause, replacing
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.figures import GROUPS, POSITION, Figure, figure, in_reading_order, readable
from clove_ssl.runs.hints import Hint, hints, worrying
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.limits import limits_of
from clove_ssl.runs.log import unreadable_files
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.state import RunState, read_state
from clove_ssl.visual.curves import draw_curve
from clove_ssl.visual.probe_bars import BarChart, bar_charts

UNKNOWN = "not known yet"
_FLAG = re.compile(r"--[a-z][a-z._-]*[a-z]")


@dataclass(frozen=True)
class Card:
    """One figure of the page: its curve and what to think of it."""

    figure: Figure
    curve: Markup
    last: str
    span: str
    gaps: int  # logged values that are infinite or not a number
    hint: Hint | None


def write_report(run: RunDirectory) -> Path:
    """Write ``report.html`` of a run and return its path."""
    # A command line may hold a file name that is no text, which UTF-8 refuses to write.
    page = render_report(run).encode("utf-8", errors="replace")
    try:
        with replacing(run.report) as file:
            file.write(page)
    except OSError as error:
        raise UserError(
            f"{run.report} cannot be written: {cause(error)}. Free some space or make the run "
            f"directory writable, then: clove report {run.path}"
        ) from error
    return run.report


def render_report(run: RunDirectory) -> str:
    """The page as text."""
    config = files.load(PretrainConfig, run.config)
    metrics = read_metrics(run)
    state = read_state(run, config, metrics)
    found = hints(metrics, limits_of(config))
    starts = _starts(run)
    return _template().render(
        title=run.path.resolve().name,
        state=state,
        progress=_progress(state),
        written=time.strftime("%Y-%m-%d %H:%M"),
        summary=_summary(config, state, History(metrics), starts),
        worries=[(figure(hint.metric).title, hint) for hint in worrying(found)],
        bad_files=len(unreadable_files(run)),
        sections=_sections(History(metrics), found),
        charts=_charts(run),
        config=run.config.read_text(encoding="utf-8"),
        starts=starts,
        provenance=json.dumps(starts, indent=2, ensure_ascii=False),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("clove_ssl", "visual"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark_flags"] = _mark_flags
    return environment.get_template("report.html.jinja")


def _mark_flags(text: str) -> Markup:
    """Set command-line options apart, so that they are not broken at a line's end."""
    return Markup(_FLAG.sub(r'<code class="flag">\g<0></code>', str(escape(text))))


def _progress(state: RunState) -> str:
    total = f" of {state.total_steps:,}" if state.total_steps else ""
    if state.step == 0:
        return f"{state.status}, no step logged yet"
    if state.status == "finished":
        return f"finished after {state.step:,} steps"
    return f"{state.status} at step {state.step:,}{total}"


def _summary(
    config: PretrainConfig,
    state: RunState,
    history: History,
    starts: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    total_epochs = _epochs(config, state)
    return {
        "Method": config.method.name,
        "Backbone": config.backbone.name,
        "Data": config.data.source,
        "Images": f"{state.images:,}" if state.images else UNKNOWN,
        "Steps": f"{state.step:,}" + (f" of {state.total_steps:,}" if state.total_steps else ""),
        "Epochs": readable(round(state.epoch or 0, 2))
        + (f" of {total_epochs}" if total_epochs else ""),
        "Batch": f"{config.batch_size:,} images",
        "Final loss" if state.status == "finished" else "Loss": _final_loss(history),
        "Throughput": _throughput(history.of("images_per_second")),
        "Device": str(starts[-1].get("device", UNKNOWN)) if starts else UNKNOWN,
    }


def _epochs(config: PretrainConfig, state: RunState) -> str:
    if not (state.total_steps and state.images):
        return ""
    return readable(round(state.total_steps * config.batch_size / state.images, 2))


def _final_loss(history: History) -> str:
    """The last value as it is, even when it is not a number."""
    losses, excess = history.points("loss"), history.points("loss_excess")
    if not losses:
        return UNKNOWN
    text = readable(losses[-1][1])
    if not excess or not math.isfinite(excess[-1][1]):
        return text
    side = "below" if excess[-1][1] < 0 else "above"
    return f"{text}, {readable(abs(excess[-1][1]))} {side} the margin"


def _throughput(speed: Series | None) -> str:
    return f"{readable(speed.settled().recent)} images/s" if speed else UNKNOWN


def _sections(history: History, found: Sequence[Hint]) -> list[tuple[str, list[Card]]]:
    """Cards of all figures by group, without empty groups."""
    by_name = {hint.metric: hint for hint in found}
    names = in_reading_order(history.names() - POSITION)
    cards = [_card(figure(name), history, by_name.get(name)) for name in names]
    sections = [
        (title, [c for c in cards if c.figure.group == key]) for key, title in GROUPS.items()
    ]
    return [(title, members) for title, members in sections if members]


def _card(shown: Figure, history: History, hint: Hint | None) -> Card:
    points = [(step, shown.shown(value)) for step, value in history.points(shown.name)]
    series = history.of(shown.name)
    last, span = readable(points[-1][1]) + shown.unit, _span(shown, series)
    label = f"{shown.title} over the steps of the run, last {last}. {span}"
    return Card(
        figure=shown,
        curve=draw_curve(points, label, unit=shown.unit),
        last=last,
        span=span,
        gaps=len(points) - (len(series.values) if series else 0),
        hint=hint,
    )


def _span(shown: Figure, series: Series | None) -> str:
    if series is None:
        return ""
    low, high = (readable(shown.shown(choose(series.values))) for choose in (min, max))
    return f"Always {low}{shown.unit}" if low == high else f"Range {low} to {high}{shown.unit}"


def _starts(run: RunDirectory) -> list[dict[str, Any]]:
    """Every start of the run, the first one and all resumes."""
    history = _read_json(run.provenance, remedy="Delete it, then: clove report RUN")
    starts: list[dict[str, Any]] = history["starts"] if history else []
    return starts


def _charts(run: RunDirectory) -> list[BarChart]:
    probes = _read_json(run.probes, remedy="Delete it and run the probe again: clove probe RUN")
    return bar_charts(probes or [])


def _read_json(path: Path, *, remedy: str) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}. {remedy}") from None
