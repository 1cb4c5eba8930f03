"""``report.html`` of a fine-tuning run: scores, differences from the protocol, pictures, curves."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.report.curves import draw_curve
from clove_ssl.report.pages import template, write_page
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.history import History
from clove_ssl.runs.metric_table import POSITION
from clove_ssl.runs.metrics import read_metrics

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class ReportTable:
    """Figures to show, ready to be printed."""

    title: str
    note: str
    rows: Rows
    details: Rows = ()


def write_finetuning_report(
    run: RunDirectory, config: FinetuneConfig, tables: Sequence[ReportTable]
) -> None:
    """Write the page; before the end of a run there are no tables yet."""
    check = _self_check(run)
    page = template("finetuning.html.jinja").render(
        title=run.path.resolve().name,
        task=config.task.name,
        backbone=config.backbone,
        progress=_progress(run, config, finished=bool(tables)),
        written=time.strftime("%Y-%m-%d %H:%M"),
        tables=tables,
        differences=config.differences(),
        notes=check.get("notes", []),
        facts=check.get("facts", {}),
        pictures=_pictures(run),
        curves=_curves(run),
        config=run.config.read_text(encoding="utf-8"),
    )
    write_page(run, page)


def _progress(run: RunDirectory, config: FinetuneConfig, *, finished: bool) -> str:
    if config.runs > 1:
        return f"{config.runs} runs of {config.total_iterations:,} iterations"
    if finished:
        return f"finished after {config.total_iterations:,} iterations"
    done = max((int(line["step"]) for line in read_metrics(run)), default=0)
    return f"at iteration {done:,} of {config.total_iterations:,}"


def _self_check(run: RunDirectory) -> dict[str, Any]:
    if not run.self_check.is_file():
        return {}
    content: dict[str, Any] = json.loads(run.self_check.read_text(encoding="utf-8"))
    return content


def _pictures(run: RunDirectory) -> list[str]:
    return [
        base64.b64encode(path.read_bytes()).decode() for path in sorted(run.pictures.glob("*.png"))
    ]


def _curves(run: RunDirectory) -> list[tuple[str, Markup]]:
    history = History(read_metrics(run))
    shown = [name for name in history.names() - POSITION if len(history.points(name)) > 1]
    return [
        (name, draw_curve(history.points(name), f"{name} over the iterations"))
        for name in sorted(shown, key=lambda name: (not name.startswith("loss"), name))
    ]
