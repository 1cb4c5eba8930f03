"""``report.html`` of a fine-tuning run: scores, differences from the protocol, pictures, curves."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.report.curves import draw_curve
from clove_ssl.report.pages import template
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.history import History
from clove_ssl.runs.metric_table import POSITION
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.probe_file import read_probes
from clove_ssl.tasks.scoring.scores import (
    class_rows,
    describe_spread,
    read_scores,
    summary_rows,
)

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class ReportTable:
    """Figures to show, ready to be printed."""

    title: str
    note: str
    rows: Rows
    details: Rows = ()


def finetuning_page(run: RunDirectory, config: FinetuneConfig) -> str:
    """The page as text; before the end of a run it has no scores yet."""
    check, scores = _self_check(run), score_tables(run, config)
    return template("finetuning.html.jinja").render(
        title=run.path.resolve().name,
        task=config.task.name,
        backbone=config.backbone,
        progress=_progress(run, config, finished=bool(scores)),
        written=time.strftime("%Y-%m-%d %H:%M"),
        tables=[*scores, *_probe_tables(run)],
        differences=config.differences(),
        notes=check.get("notes", []),
        facts=check.get("facts", {}),
        pictures=_pictures(run),
        curves=_curves(run),
        config=run.config.read_text(encoding="utf-8"),
    )


def score_tables(run: RunDirectory, config: FinetuneConfig) -> Sequence[ReportTable]:
    """The scores of a run, or of several; none before they end."""
    return _tables(run) if config.runs == 1 else _summary_tables(run)


def _tables(run: RunDirectory) -> list[ReportTable]:
    if not run.scores.is_file():
        return []
    scores = read_scores(run.scores)
    return [
        ReportTable(
            title=f"Scores: {table.name}",
            note=f"{table.rule}, {scores.images:,} images",
            rows=summary_rows(table),
            details=class_rows(table),
        )
        for table in scores.tables
    ]


def _summary_tables(run: RunDirectory) -> Sequence[ReportTable]:
    if not run.summary.is_file():
        return []
    content = json.loads(run.summary.read_text(encoding="utf-8"))
    seeds = [f"run-{number}" for number in range(content["runs"])]
    rows = [
        [name, describe_spread(spread), *(f"{100 * value:.2f}" for value in spread["values"])]
        for name, spread in content["figures"].items()
    ]
    head = ["figure", "mean +- standard deviation", *seeds]
    note = "The runs differ in their seed alone."
    return [ReportTable(f"Scores of {content['runs']} runs", note, [head, *rows])]


def _probe_tables(run: RunDirectory) -> list[ReportTable]:
    """What ``clove probe`` found about the fine-tuned backbone and those beside it."""
    entries = read_probes(run)
    if not entries:
        return []
    rows = [
        [str(entry[key]) for key in ("title", "backbone", "data")] + [_shown(entry)]
        for entry in entries
    ]
    head = ["figure", "backbone", "data", "value"]
    return [ReportTable("Frozen features", "Shares in percent.", [head, *rows])]


def _shown(entry: Mapping[str, Any]) -> str:
    return f"{100 * entry['value']:.2f}" if entry["is_share"] else f"{entry['value']:.4g}"


def _progress(run: RunDirectory, config: FinetuneConfig, *, finished: bool) -> str:
    if config.runs > 1:
        return f"{config.runs} runs of {config.total_iterations:,} iterations"
    done = max((int(line["step"]) for line in read_metrics(run)), default=0)
    if finished:
        ended = done if config.evaluation.patience else config.total_iterations
        return f"finished after {ended:,} iterations"
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
