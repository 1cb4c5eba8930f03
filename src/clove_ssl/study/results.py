"""What the finished cells of a study have measured, and what they were made with.

Shares are in percent from here on, since that is how tables give them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.config.json_files import read_json
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.history import History
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.provenance import last_start
from clove_ssl.runs.state import read_state
from clove_ssl.study.cells import Cell, state_of
from clove_ssl.study.config import (
    Changes,
    FinetuningEntry,
    PretrainingEntry,
    ProbeEntry,
    StudyConfig,
)
from clove_ssl.study.configs import differing, plain
from clove_ssl.study.paper_tables import IMAGENET_IMAGES, TEST_IMAGES, PaperRow, PaperTable
from clove_ssl.study.plan import StudyPlan
from clove_ssl.study.statistics import Seeds
from clove_ssl.study.studies import paper_ablations, paper_main
from clove_ssl.study.tables import PretrainingRow
from clove_ssl.tasks.scoring.scores import read_scores

Measure = ProbeEntry | FinetuningEntry
ScoresBySeed = dict[str, dict[Seeds, float]]
"""Values by score, then by the seeds of pre-training and fine-tuning."""


@dataclass(frozen=True)
class Results:
    """Everything that was measured in one way for one pre-training."""

    scores: ScoresBySeed = field(default_factory=dict)
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
    scores: ScoresBySeed = {}
    for cell in cells:
        for name, value in _scores(plan.folder.run(cell.name), measure).items():
            scores.setdefault(name, {})[cell.seed, cell.finetuning_seed] = value
    if not cells or isinstance(measure, ProbeEntry):
        return Results(scores)
    run = plan.folder.run(cells[0].name)
    images = read_scores(run.scores).images
    return Results(scores, images, files.load(FinetuneConfig, run.config))


def pretraining_facts(plan: StudyPlan, entry: PretrainingEntry) -> PretrainingFacts | None:
    """What is known of the first finished run of an entry."""
    cell = next(iter(_pretrainings(plan, entry)), None)
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
    def recent(metric: str) -> float | None:
        series = history.of(metric)
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


def _scores(run: RunDirectory, measure: Measure) -> dict[str, float]:
    if isinstance(measure, FinetuningEntry):
        found = read_scores(run.scores).by_name()
        return {name: 100 * value for name, value in found.items() if value == value}
    return {
        name: (100 if score["is_share"] else 1) * score["value"]
        for name, score in _read_probe_scores(run.scores).items()
        if score["value"] == score["value"]  # a network that diverged has no score
    }


class _ProbeScore(TypedDict):
    value: float
    is_share: bool


def _read_probe_scores(path: Path) -> dict[str, _ProbeScore]:
    remedy = "Delete its folder, then start the study again."
    content: dict[str, _ProbeScore] = read_json(path, dict[str, _ProbeScore], remedy=remedy)
    return content


PAPER_BACKBONE = "resnet50"
_LEARNING = {"method", "optimizer", "batch_size", "sync_norm"}
_TOLD_OR_NEUTRAL = {
    *("iterations", "batch_size", "precision", "data"),  # have words of their own
    *("seed", "runs", "logging", "device", "checkpoint_every", "micro_batch", "deterministic"),
}
_NEUTRAL = {"evaluation.pictures", "evaluation.every", "task.surface"}


def describe_budget(
    study: StudyConfig, entry: PretrainingEntry, facts: PretrainingFacts | None, results: Results
) -> str:
    """How long pre-training and fine-tuning were."""
    parts = [_pretraining_budget(study, entry, facts)]
    if results.finetuning is not None:
        config = results.finetuning
        parts.append(f"{config.total_iterations:,} steps of {config.effective_batch}")
    return "; ".join(part for part in parts if part)


def describe_data(
    study: StudyConfig, facts: PretrainingFacts | None, measure: Measure, results: Results
) -> str:
    """On which images it was trained and tested."""
    parts = []
    if facts is not None and facts.config.method.trains:
        name = study.data.pretrain_name or Path(facts.config.data.source).name
        count = f"{facts.images:,} images" if facts.images else "images"
        parts.append(f"{name}, {count}")
    where = measure.data if isinstance(measure, ProbeEntry) else measure.data_name
    tested = "" if results.test_images is None else f", {results.test_images:,} images"
    return "; ".join([*parts, f"tested on {where}{tested}"])


def departures(
    study: StudyConfig,
    entry: PretrainingEntry,
    facts: PretrainingFacts | None,
    results: Results,
    place: tuple[PaperTable, PaperRow],
) -> Iterator[str]:
    """Everything that is known to be otherwise than for a row of the paper, in a few words."""
    table, row = place
    if facts is None:
        yield "weights from elsewhere"
    else:
        yield from _pretraining_departures(facts, row)
        own = {} if table.is_ablation else entry.changes  # its row is about them
        yield from _recipe_departures(entry, [*_options(study.changes), *_options(own)])
    config = results.finetuning
    if config is not None:
        yield from _finetuning_departures(config)
    expected = TEST_IMAGES.get(table.task)
    if results.test_images is not None and expected not in (None, results.test_images):
        yield f"tested on {results.test_images:,} images instead of {expected:,}"


def _pretraining_budget(
    study: StudyConfig, entry: PretrainingEntry, facts: PretrainingFacts | None
) -> str:
    if entry.backbone is not None:
        return f"weights of {Path(entry.backbone).name}"
    if facts is None:
        return ""
    if not facts.config.method.trains:
        return "no pre-training"
    time = f"{study.budget.amount:g} s: " if study.budget.kind == "seconds" else ""
    epochs = "" if facts.epochs is None else f" ({facts.epochs:.3g} epochs)"
    return f"{time}{facts.steps:,} steps of {facts.config.batch_size:,}{epochs}"


def _pretraining_departures(facts: PretrainingFacts, row: PaperRow) -> Iterator[str]:
    config = facts.config
    if config.backbone.name != PAPER_BACKBONE:
        yield f"{config.backbone.name} instead of {PAPER_BACKBONE}"
    if not config.method.trains:
        return
    if facts.images != IMAGENET_IMAGES:
        count = f"{facts.images:,}" if facts.images else "other"
        yield f"pre-trained on {count} images instead of {IMAGENET_IMAGES:,}"
    epochs = facts.epochs
    if row.epochs and (epochs is None or abs(epochs - row.epochs) > 0.01 * row.epochs):
        shown = "another number of" if epochs is None else f"{epochs:.3g}"
        yield f"{shown} epochs instead of {row.epochs}"


def _recipe_departures(entry: PretrainingEntry, changed: Sequence[str]) -> Iterator[str]:
    published = {e.recipe for made in (paper_main(), paper_ablations()) for e in made.pretrainings}
    if entry.recipe not in published:
        yield f"recipe {entry.recipe}" if entry.recipe else f"config {entry.config}"
    others = {name for name in changed if name.partition(".")[0] in _LEARNING}
    if others:
        yield f"pre-trained with other {', '.join(sorted(others))}"


def _options(changes: Changes, prefix: str = "") -> Iterator[str]:
    """The options of nested changes, with dots between their levels."""
    for key, value in changes.items():
        if isinstance(value, dict):
            yield from _options(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _finetuning_departures(config: FinetuneConfig) -> Iterator[str]:
    published = protocol(config.task.name, config.out, config.backbone)
    if config.total_iterations != published.total_iterations:
        yield f"{config.total_iterations:,} steps instead of {published.total_iterations:,}"
    if config.effective_batch != published.effective_batch:
        yield f"batches of {config.effective_batch} instead of {published.effective_batch}"
    if config.precision != published.precision:
        yield f"{config.precision} instead of {published.precision}"
    if config.data.uses_scenes:
        yield "built-in scenes"
    for name in ("train_lists", "test_lists", "train_annotations", "test_annotations"):
        if given := getattr(config.data, name):
            yield f"{name.replace('_', ' ')} {given}"
    others = [
        name
        for name in sorted(differing(plain(published), plain(config)))
        if name.partition(".")[0] not in _TOLD_OR_NEUTRAL and name not in _NEUTRAL
    ]
    if others:
        yield f"changed {', '.join(others)}"
