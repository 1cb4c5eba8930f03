"""What the finished cells of a study have measured, and what they were made with.

Shares are in percent from here on, since that is how tables give them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.history import History
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.provenance import last_start
from clove_ssl.runs.state import read_state
from clove_ssl.study.cells import Cell, state_of
from clove_ssl.study.config import FinetuningEntry, PretrainingEntry, ProbeEntry
from clove_ssl.study.plan import StudyPlan
from clove_ssl.study.statistics import Seeds
from clove_ssl.study.tables import PretrainingRow
from clove_ssl.tasks.scoring.scores import read_scores

Measure = ProbeEntry | FinetuningEntry
Figures = dict[str, dict[Seeds, float]]
"""Values by figure, then by the seeds of pre-training and fine-tuning."""


@dataclass(frozen=True)
class Results:
    """Everything that was measured in one way for one pre-training."""

    figures: Figures = field(default_factory=dict)
    test_images: int | None = None
    finetuning: FinetuneConfig | None = None


@dataclass(frozen=True)
class PretrainingFacts:
    """How a backbone was made, by its finished runs."""

    config: PretrainConfig
    steps: int
    images: int | None
    device: str

    @property
    def epochs(self) -> float | None:
        """Passes over the images."""
        if not self.images or not self.config.method.trains:
            return None
        return self.steps * self.config.batch_size / self.images


def results_of(plan: StudyPlan, entry: PretrainingEntry, measure: Measure) -> Results:
    """Read what the finished cells of a row and a measure have found."""
    cells = [
        cell
        for cell in plan.cells
        if cell.entry.label == entry.label
        and type(cell.measure) is type(measure)
        and cell.measure_label == measure.label
        and state_of(cell, plan.folder) == "done"
    ]
    figures: Figures = {}
    for cell in cells:
        for name, value in _figures(plan.folder.run(cell.name), measure).items():
            figures.setdefault(name, {})[cell.seed, cell.finetuning_seed] = value
    if not cells or isinstance(measure, ProbeEntry):
        return Results(figures)
    run = plan.folder.run(cells[0].name)
    images = read_scores(run.scores).images
    return Results(figures, images, files.load(FinetuneConfig, run.config))


def pretraining_facts(plan: StudyPlan, entry: PretrainingEntry) -> PretrainingFacts | None:
    """What is known of the first finished run of an entry."""
    cell = next((cell for cell in _pretrainings(plan, entry)), None)
    if cell is None:
        return None
    run = plan.folder.run(cell.name)
    config, metrics = files.load(PretrainConfig, run.config), read_metrics(run)
    state = read_state(run, config, metrics)
    steps = state.total_steps if state.total_steps is not None else state.step
    return PretrainingFacts(config, steps, state.images, str(last_start(run).get("device", "")))


def pretraining_rows(plan: StudyPlan) -> list[PretrainingRow]:
    """How all finished pre-trainings went; random weights have no history."""
    return [
        _pretraining_row(cell.name, History(metrics))
        for entry in plan.config.pretrainings
        for cell in _pretrainings(plan, entry)
        if (metrics := read_metrics(plan.folder.run(cell.name)))
    ]


def _pretraining_row(name: str, history: History) -> PretrainingRow:
    def recent(figure: str) -> float | None:
        series = history.of(figure)
        return None if series is None else series.settled().recent

    loss, epoch = history.of("loss"), history.of("epoch")
    return PretrainingRow(
        run=name.removeprefix("pretrain/"),
        steps=history.last_step,
        epochs=None if epoch is None else epoch.values[-1],
        images_per_second=recent("images_per_second"),
        memory_gib=recent("memory_gib"),
        loss=None if loss is None else (loss.values[0], loss.values[-1]),
        effective_rank=recent("effective_rank"),
        feature_std=recent("feature_std"),
    )


def _pretrainings(plan: StudyPlan, entry: PretrainingEntry) -> list[Cell]:
    return [
        cell
        for cell in plan.cells
        if cell.kind == "pretrain"
        and cell.entry.label == entry.label
        and state_of(cell, plan.folder) == "done"
    ]


def _figures(run: RunDirectory, measure: Measure) -> dict[str, float]:
    if isinstance(measure, FinetuningEntry):
        found = read_scores(run.scores).figures()
        return {name: 100 * value for name, value in found.items() if value == value}
    return {
        name: (100 if score["is_share"] else 1) * score["value"]
        for name, score in _read_json(run.scores).items()
        if score["value"] == score["value"]  # a network that diverged has no figure
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(
            f"{path} is damaged: {error}. Delete its folder, then start the study again."
        ) from None
    return content
