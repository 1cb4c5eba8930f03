"""Studies whose cells are done without any training: the files that finished runs leave."""

from __future__ import annotations

import json
from collections.abc import Mapping

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.study.cells import Cell
from clove_ssl.study.plan import StudyPlan
from clove_ssl.tasks.scoring.scores import Scores, ScoreTable, write_scores


def finish_pretraining(plan: StudyPlan, cell: Cell, *, images: int) -> None:
    """What a finished pre-training on this many images leaves."""
    config, run = _begin(plan, cell)
    assert isinstance(config, PretrainConfig)
    run.backbone.write_bytes(b"weights")
    run.model_card.write_text("card")
    steps = config.total_steps(images)
    if steps:
        line = {"step": steps, "epoch": steps * config.batch_size / images, "loss": 1.0}
        run.metrics.write_text(json.dumps(line) + "\n")


def finish_finetuning(
    plan: StudyPlan, cell: Cell, figures: Mapping[str, float], *, images: int
) -> None:
    """What a scored fine-tuning leaves; figures such as ``voc_AP`` are shares."""
    config, run = _begin(plan, cell)
    assert isinstance(config, FinetuneConfig)
    summaries: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        table, _, figure = name.partition("_")
        summaries.setdefault(table, {})[figure] = value
    tables = tuple(ScoreTable(name, "rule", summary, {}) for name, summary in summaries.items())
    write_scores(run.scores, Scores(tables, images))


def finish_probe(plan: StudyPlan, cell: Cell, figures: Mapping[str, float]) -> None:
    """What a probe of shares leaves."""
    _, run = _begin(plan, cell)
    content = {
        name: {"value": value, "interval": None, "is_share": True}
        for name, value in figures.items()
    }
    run.scores.write_text(json.dumps(content))


def _begin(plan: StudyPlan, cell: Cell) -> tuple[object, RunDirectory]:
    plan.keep(cell)
    config, run = plan.config_of(cell), directory.make(plan.folder.run(cell.name).path)
    files.save(config, run.config)
    return config, run
