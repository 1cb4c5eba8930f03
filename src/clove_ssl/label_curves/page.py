"""What a comparison writes: ``labels.json``, its table in Markdown, the curves, and a page."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from markupsafe import Markup

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.errors import counted
from clove_ssl.label_curves.plan import LabelPlan
from clove_ssl.label_curves.results import (
    LabelCurve,
    LabelPoint,
    collect,
    content,
    table_rows,
    waiting,
)
from clove_ssl.report.page import template
from clove_ssl.report.series import Series, SeriesPoint, paint_series
from clove_ssl.text_tables import in_markdown


def write_results(plan: LabelPlan, failures: Mapping[str, str]) -> LabelCurve:
    """Write what is known by now, and give it."""
    curve, folder = collect(plan), plan.folder
    found = content(plan, curve, failures)
    try:
        write_text(folder.result("json"), json.dumps(found, indent=1, allow_nan=False) + "\n")
        write_text(folder.result("md"), as_markdown(plan, curve))
        if (picture := paint_curve(curve, title=title(plan, curve))) is not None:
            write_text(folder.result("svg"), f"{picture}\n")
        write_text(folder.result("html"), as_page(plan, curve, failures))
    except OSError as error:
        raise unwritable("The results", folder.path, error) from None
    return curve


def paint_curve(curve: LabelCurve, *, title: str) -> Markup | None:
    """A line for every backbone; nothing where nothing is measured yet."""
    series = [
        Series(line.name, tuple(_in_percent(point) for point in line.points))
        for line in curve.lines
    ]
    return paint_series(series, title=title, across="labelled images")


def _in_percent(point: LabelPoint) -> SeriesPoint:
    return SeriesPoint(point.images, tuple(100 * value for value in point.values))


def title(plan: LabelPlan, curve: LabelCurve) -> str:
    """What the curves show."""
    shared = plan.config.finetuning
    return f"{curve.score} of {shared.task.name}, tested on {counted(plan.test_images, 'image')}"


def legend(plan: LabelPlan) -> str:
    """How to read the table, and what all backbones have in common."""
    shared = plan.config.finetuning
    spread = (
        f" Means of {shared.runs} seeds ± standard deviation of one run." if shared.runs > 1 else ""
    )
    return (
        f"Scores in percent.{spread} Within a row, all backbones are trained on the same images "
        f"with the same schedule. The seed of a run (from {shared.seed} on) decides which training "
        "images are drawn: every class at least once where their number allows it. A larger part "
        "contains every smaller one. All backbones are tested on the same images."
    )


def as_markdown(plan: LabelPlan, curve: LabelCurve) -> str:
    """The table and what it means."""
    verdict = [f"- {sentence}" for sentence in curve.verdict()]
    parts = [f"# {title(plan, curve)}", in_markdown(table_rows(plan, curve))]
    parts += ["\n".join(verdict)] if verdict else []
    return "\n\n".join([*parts, legend(plan)]) + "\n"


def as_page(plan: LabelPlan, curve: LabelCurve, failures: Mapping[str, str]) -> str:
    """The same as a page, with the curves."""
    head, *rows = table_rows(plan, curve)
    return template("labels.html.jinja").render(
        title=title(plan, curve),
        curves=paint_curve(curve, title=title(plan, curve)),
        verdict=curve.verdict(),
        legend=legend(plan),
        head=head,
        rows=rows,
        backbones=[(arm.name, arm.backbone) for arm in plan.arms],
        waiting=waiting(plan, failures),
        written=time.strftime("%Y-%m-%d %H:%M"),
    )
