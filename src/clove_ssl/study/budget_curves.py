"""Scores over the budget: one study, made several times with budgets that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from clove_ssl.config import files
from clove_ssl.errors import UserError
from clove_ssl.report.series import Series, SeriesPoint, paint_series
from clove_ssl.study.comparing import main_score, measures_of, title_of
from clove_ssl.study.config import StudyConfig
from clove_ssl.study.plan import StudyPlan, make_plan
from clove_ssl.study.results import Measure, results_of


def open_beside(plan: StudyPlan, folders: Sequence[Path]) -> list[StudyPlan]:
    """The study and its like in other folders, the smallest budget first."""
    others = [_open(folder, plan) for folder in folders]
    return sorted([plan, *others], key=lambda each: each.config.budget.amount or 0.0)


def _open(folder: Path, plan: StudyPlan) -> StudyPlan:
    file = folder / "study.yaml"
    if not file.is_file():
        raise UserError(
            f"--beside {folder} is no folder of a study: {file} does not exist. Give the --out of "
            "a study that was run with another --amount."
        )
    other = make_plan(files.load(StudyConfig, file), folder)
    kind, theirs = plan.config.budget.kind, other.config.budget.kind
    if kind == "recipe" or theirs != kind:
        raise UserError(
            f"--beside {folder} has a budget of kind {theirs}, this study one of kind {kind}. "
            "Curves need the same kind with amounts: seconds, steps or epochs."
        )
    ours, its = _named_parts(plan.config), _named_parts(other.config)
    if changed := [name for name in ours if its.get(name, ours[name]) != ours[name]]:
        raise UserError(
            f"--beside {folder} means something else by {', '.join(changed)}, so a curve would "
            "join what cannot be compared. Give a folder of the same study with another --amount."
        )
    return other


def _named_parts(study: StudyConfig) -> dict[str, dict[str, Any]]:
    """Pre-trainings and what measures them by name, without seeds, of which there may be fewer."""
    values = files.values_of(study)
    return {
        f"{kind}: {part['label']}": {key: each for key, each in part.items() if key != "seeds"}
        for kind in ("pretrainings", "probes", "finetunings")
        for part in values[kind]
    }


def budget_curves(plans: Sequence[StudyPlan]) -> dict[str, Markup]:
    """A picture for every measure, by a name for its file; none for a single budget."""
    if len(plans) < 2:
        return {}
    latest = plans[-1].config
    pictures = {}
    for measure in measures_of(latest):
        series = list(_series(plans, measure))
        picture = paint_series(
            series, title=_title(plans, measure), across=f"{latest.budget.kind} of pre-training"
        )
        if picture is not None:
            pictures[f"budgets-{measure.label}"] = picture
    return pictures


def _series(plans: Sequence[StudyPlan], measure: Measure) -> Iterator[Series]:
    """A line for every pre-training, of the score that counts."""
    for entry in plans[-1].config.pretrainings:
        points = []
        for plan in plans:
            scores = results_of(plan, entry, measure).scores
            values = scores.get(main_score(measure, scores), {})
            points.append(SeriesPoint(plan.config.budget.amount or 0.0, tuple(values.values())))
        yield Series(entry.label, tuple(points))


def _title(plans: Sequence[StudyPlan], measure: Measure) -> str:
    scores = (
        results_of(plan, entry, measure).scores
        for plan in plans
        for entry in plan.config.pretrainings
    )
    found = next((each for each in scores if each), {})
    return f"{measure.label}, {title_of(measure, main_score(measure, found))}"
