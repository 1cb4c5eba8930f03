"""The runs of a report, read from their directories; of both kinds, ready to be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.report.pages import when
from clove_ssl.runs.common_metrics import COMMON
from clove_ssl.runs.directory import RunDirectory, read_config
from clove_ssl.runs.hints import Hint, hints, metric_table
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import MetricTable, readable
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.provenance import read_starts, unreadable_files
from clove_ssl.runs.state import RunState, read_state

UNKNOWN = "not known yet"

Facts = dict[str, str]


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
    metrics: MetricTable = field(default_factory=lambda: MetricTable(COMMON))
    hints: Sequence[Hint] = ()
    bad_files: int = 0
    is_interrupted: bool = False
    is_untrained: bool = False
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
        last = self.starts[-1] if self.starts else {}
        cuda = f", CUDA {last['cuda']}" if last.get("cuda") else ""
        return {
            "Device": str(last.get("device", UNKNOWN)),
            "CPU cores": str(last.get("cores", UNKNOWN)),
            "Software": f"torch {last['torch']}{cuda}" if "torch" in last else UNKNOWN,
            **_choices(last.get("choices", {})),
            "Throughput": throughput(self.history),
            "Waiting for data": _share(self.history.of("data_wait")),
            "GPU memory": _memory(self.history.of("memory_gib")),
            "Started": when(str(self.starts[0].get("time", UNKNOWN))) if self.starts else UNKNOWN,
        }


def read_run(run: RunDirectory, *, name: str = "", number: int = 0) -> ReportedRun:
    """Read what a report says about a run, whatever kind it is."""
    name = name or run.path.resolve().name
    config = read_config(run)
    if isinstance(config, FinetuneConfig):
        return _read_finetuning(run, config, name, number)
    metrics = read_metrics(run)
    state = read_state(run, config, metrics)
    starts, history = read_starts(run), History(metrics)
    return ReportedRun(
        run=run,
        name=name,
        number=number,
        progress=_progress(state),
        facts=_pretraining_facts(config, state, history, starts),
        history=history,
        starts=starts,
        hints=hints(metrics, config),
        metrics=metric_table(config),
        bad_files=len(unreadable_files(run)),
        is_interrupted=state.status == "interrupted",
        is_untrained=state.total_steps == 0,
    )


def read_runs(runs: Sequence[RunDirectory]) -> list[ReportedRun]:
    """Several runs with names that tell them apart."""
    short = [run.path.resolve().name for run in runs]
    names = [
        name if short.count(name) == 1 else str(run.path)
        for name, run in zip(short, runs, strict=True)
    ]
    return [
        read_run(run, name=name, number=number)
        for number, (run, name) in enumerate(zip(runs, names, strict=True))
    ]


def throughput(history: History) -> str:
    """Images per second of late."""
    speed = history.of("images_per_second")
    return f"{readable(speed.settled().recent)} images/s" if speed else UNKNOWN


def _read_finetuning(
    run: RunDirectory, config: FinetuneConfig, name: str, number: int
) -> ReportedRun:
    metrics = read_metrics(run)
    step = max((int(line["step"]) for line in metrics), default=0)
    scored = run.summary if config.runs > 1 else run.scores
    done = f"{config.total_iterations:,} iterations"
    repeated = f"{config.runs} runs of " if config.runs > 1 else ""
    starts, history = read_starts(run), History(metrics)
    return ReportedRun(
        run=run,
        name=name,
        number=number,
        progress=f"finished after {repeated}{done}"
        if scored.is_file()
        else f"at iteration {step:,} of {repeated}{done}",
        facts={
            "Task": config.task.name,
            "Backbone": config.backbone,
            "Iterations": f"{step:,} of {config.total_iterations:,}",
            "Batch": f"{config.effective_batch:,} images",
            "Learning rate": readable(config.peak_lr),
            "Throughput": throughput(history),
        },
        history=history,
        starts=starts,
        finetuning=config,
    )


def _progress(state: RunState) -> str:
    total = f" of {state.total_steps:,}" if state.total_steps else ""
    if state.total_steps == 0:
        return f"{state.status} without training"
    if state.step == 0:
        return f"{state.status}, no step logged yet"
    if state.status == "finished":
        return f"finished after {state.step:,} steps"
    return f"{state.status} at step {state.step:,}{total}"


def _pretraining_facts(
    config: PretrainConfig,
    state: RunState,
    history: History,
    starts: Sequence[Mapping[str, Any]],
) -> Facts:
    device = str(starts[-1].get("device", UNKNOWN)) if starts else UNKNOWN
    made = {"Method": config.method.name, "Backbone": config.backbone.name, "Device": device}
    if not config.method.trains:
        return {**made, "Seed": str(config.seed), "Steps": "none, the weights are random"}
    return {**made, **_training_facts(config, state, history)}


def _training_facts(config: PretrainConfig, state: RunState, history: History) -> Facts:
    total_epochs = _epochs(config, state)
    return {
        "Data": config.data.source,
        "Images": f"{state.images:,}" if state.images else UNKNOWN,
        "Steps": f"{state.step:,}" + (f" of {state.total_steps:,}" if state.total_steps else ""),
        "Epochs": readable(round(state.epoch or 0, 2))
        + (f" of {total_epochs}" if total_epochs else ""),
        "Batch": f"{config.batch_size:,} images",
        "Final loss" if state.status == "finished" else "Loss": _final_loss(config, history),
        "Throughput": throughput(history),
    }


def _epochs(config: PretrainConfig, state: RunState) -> str:
    if not (state.total_steps and state.images):
        return ""
    return readable(round(state.total_steps * config.batch_size / state.images, 2))


def _final_loss(config: PretrainConfig, history: History) -> str:
    """The last value as it is, even when it is not a number, and how far it is from what."""
    losses = history.points("loss")
    if not losses:
        return UNKNOWN
    text = readable(losses[-1][1])
    for metric in metric_table(config):
        distance = history.points(metric.name)[-1:] if metric.distance_from else []
        for _, value in distance:
            if math.isfinite(value):
                side = "below" if value < 0 else "above"
                text += f", {readable(abs(value))} {side} {metric.distance_from}"
    return text


def _choices(made: Mapping[str, Any]) -> Facts:
    """What the last start decided, with its reasons; earlier versions did not write that down."""
    named = ("precision", "rendering", "compilation", "workers")
    chosen = {name: made[name] for name in named if name in made}
    return {
        name.capitalize(): f"{_word(choice.get('value', UNKNOWN))} ({choice.get('reason', '')})"
        for name, choice in chosen.items()
    }


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _share(series: Series | None) -> str:
    return f"{readable(100 * series.settled().recent)} %" if series else UNKNOWN


def _memory(series: Series | None) -> str:
    return f"{readable(max(series.values))} GiB" if series else "none"
