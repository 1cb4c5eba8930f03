"""With which budget and data a row was made, and where that leaves the paper's setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clove_ssl.config.finetuning import FinetuneConfig, protocol
from clove_ssl.study.config import Changes, PretrainingEntry, ProbeEntry, StudyConfig
from clove_ssl.study.configs import differing, plain
from clove_ssl.study.paper_tables import IMAGENET_IMAGES, TEST_IMAGES, PaperRow, PaperTable
from clove_ssl.study.results import Measure, PretrainingFacts, Results
from clove_ssl.study.studies import paper_ablations, paper_main

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
        parts.append(f"{config.total_iterations:,} iterations of {config.effective_batch}")
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
        yield f"{config.total_iterations:,} iterations instead of {published.total_iterations:,}"
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
