"""The runs of a report, read from their directories; of both kinds, ready to be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clove_ssl.config.finetuning import RANDOM, FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig, data_warnings
from clove_ssl.errors import counted
from clove_ssl.report.facts import (
    Facts,
    finetuning_facts,
    hardware_facts,
    pretraining_facts,
)
from clove_ssl.report.verdict import RunVerdict, finetuning_verdict, pretraining_verdict
from clove_ssl.runs.common_metrics import COMMON, FINETUNING
from clove_ssl.runs.directory import RunDirectory, read_config
from clove_ssl.runs.hints import Hint, hints, metric_table
from clove_ssl.runs.history import History
from clove_ssl.runs.metric_table import MetricTable
from clove_ssl.runs.metrics import damaged_lines, read_metrics
from clove_ssl.runs.provenance import read_starts, recorded_side, unreadable_files
from clove_ssl.runs.state import RunState, read_state


@dataclass(frozen=True)
class ReportedRun:
    """One run, as a report speaks of it."""

    run: RunDirectory
    name: str
    number: int  # its colour
    progress: str
    facts: Facts
    history: History
    starts: Sequence[Mapping[str, Any]]
    verdict: RunVerdict
    metrics: MetricTable = field(default_factory=lambda: MetricTable(COMMON))
    hints: Sequence[Hint] = ()
    warnings: Sequence[tuple[str, str]] = ()  # a title and a sentence each, about data and files
    finetuning: FinetuneConfig | None = None  # none of a pre-training

    @property
    def is_finetuning(self) -> bool:
        """Whether it trained a task, and not a backbone."""
        return self.finetuning is not None

    @property
    def config_text(self) -> str:
        """Its ``config.yaml``."""
        return self.run.config.read_text(encoding="utf-8")

    @property
    def provenance_text(self) -> str:
        """All its starts."""
        return json.dumps(self.starts, indent=2, ensure_ascii=False)

    def hardware(self) -> Facts:
        """What it ran on, and how fast."""
        return hardware_facts(self.starts, self.history)


def read_run(run: RunDirectory, *, name: str = "", number: int = 0) -> ReportedRun:
    """Read what a report says about a run, whatever kind it is."""
    name = name or run.path.resolve().name
    config = read_config(run)
    if isinstance(config, FinetuneConfig):
        return _read_finetuning(run, config, name, number)
    metrics = read_metrics(run)
    state = read_state(run, config, metrics)
    starts, history = read_starts(run), History(metrics)
    found = hints(metrics, config, total_steps=state.total_steps)
    return ReportedRun(
        run=run,
        name=name,
        number=number,
        progress=_progress(state),
        facts=pretraining_facts(run, config, state, history, starts),
        history=history,
        starts=starts,
        verdict=pretraining_verdict(run, config, state, found),
        hints=found,
        metrics=metric_table(config),
        warnings=[*_data_warnings(run, config, state), *_file_warnings(run)],
    )


def read_runs(runs: Sequence[RunDirectory]) -> list[ReportedRun]:
    """Several runs with names that tell them apart."""
    short = [run.path.resolve().name for run in runs]
    names = [
        name if short.count(name) == 1 else str(run.path)
        for name, run in zip(short, runs, strict=True)
    ]
    read = [
        read_run(run, name=name, number=number)
        for number, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    return [_beside_random_weights(run, read) for run in read]


def _beside_random_weights(run: ReportedRun, others: Sequence[ReportedRun]) -> ReportedRun:
    """A fine-tuning with a verdict that knows the same one of random weights on this page."""
    own = run.finetuning
    if own is None:
        return run
    for other in others:
        its = other.finetuning
        if its is not None and its.backbone == RANDOM and _lesson(its) == _lesson(own):
            return replace(run, verdict=finetuning_verdict(run.run, own, floor=other.run))
    return run


def _lesson(config: FinetuneConfig) -> tuple[object, ...]:
    """What fine-tunings have in common that can be compared by their scores."""
    # How images are read, and from where their paths begin, changes nothing about them.
    alike: dict[str, Any] = {"workers": None, "prefetch": 1}
    for name, value in vars(config.data).items():
        if isinstance(value, Path):
            alike[name] = value.resolve()
    return config.task, config.total_iterations, config.fraction, replace(config.data, **alike)


def _read_finetuning(
    run: RunDirectory, config: FinetuneConfig, name: str, number: int
) -> ReportedRun:
    metrics = read_metrics(run)
    step = max((int(line["step"]) for line in metrics), default=0)
    starts, history = read_starts(run), History(metrics)
    return ReportedRun(
        run=run,
        name=name,
        number=number,
        progress=_finetuning_progress(run, config, step),
        facts=finetuning_facts(run, config, step, history, starts),
        history=history,
        starts=starts,
        verdict=finetuning_verdict(run, config),
        warnings=list(_damage(run)),
        metrics=MetricTable(FINETUNING),
        finetuning=config,
    )


def _finetuning_progress(run: RunDirectory, config: FinetuneConfig, step: int) -> str:
    scored = run.summary if config.runs > 1 else run.scores
    repeated = f"{config.runs} runs of " if config.runs > 1 else ""
    if scored.is_file():
        # A run may end early, when its scores no longer rise; repetitions log on their own.
        ended = step or config.total_iterations
        return f"finished after {repeated}{counted(ended, 'step')}"
    return f"at step {step:,} of {repeated}{config.total_iterations:,} steps"


def _progress(state: RunState) -> str:
    total = f" of {state.total_steps:,}" if state.total_steps else ""
    if state.total_steps == 0:
        return f"{state.status} without training"
    if state.step == 0:
        return f"{state.status}, no step logged yet"
    if state.status == "finished":
        return f"finished after {counted(state.step, 'step')}"
    return f"{state.status} at step {state.step:,}{total}"


def _data_warnings(
    run: RunDirectory, config: PretrainConfig, state: RunState
) -> list[tuple[str, str]]:
    side = recorded_side(run)
    found = data_warnings(config, images=state.images, shorter_side=side)
    return [("Data", text) for text in found]


def _file_warnings(run: RunDirectory) -> list[tuple[str, str]]:
    """Files that could not be read, of the data and of the run itself."""
    count = len(unreadable_files(run))
    found = list(_damage(run))
    if count == 1:
        text = "1 file could not be read and was replaced by another; log.txt names it."
        found.append(("Files", text))
    elif count:
        text = f"{count:,} files could not be read and were replaced by others; log.txt names them."
        found.append(("Files", text))
    return found


def _damage(run: RunDirectory) -> list[tuple[str, str]]:
    damage = damaged_lines(run)
    return [("Log", f"{damage}.")] if damage else []
