"""The report of a fine-tuning run, or of several that differ in their seed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.finetuning.score import describe
from clove_ssl.report.finetuning import ReportTable, write_finetuning_report
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.scoring.scores import class_rows, read_scores, summary_rows


def write_report(run: RunDirectory) -> None:
    """Write ``report.html``; it can be written at any time."""
    config = files.load(FinetuneConfig, run.config)
    write_finetuning_report(run, config, score_tables(run, config))


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
        [name, describe(spread), *(f"{100 * value:.2f}" for value in spread["values"])]
        for name, spread in content["figures"].items()
    ]
    head = ["figure", "mean +- standard deviation", *seeds]
    note = "The runs differ in their seed alone."
    return [ReportTable(f"Scores of {content['runs']} runs", note, [head, *rows])]
