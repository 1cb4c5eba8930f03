"""The summary of a run: what it is, how long it took, on what, and what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import duration
from clove_ssl.report.probe_bars import headed
from clove_ssl.report.verdict import percent, probes_of
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.hints import metric_table
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import readable
from clove_ssl.runs.metrics import PROBE_PREFIX
from clove_ssl.runs.state import RunState
from clove_ssl.runs.summary_file import read_summary
from clove_ssl.tasks.scoring.scores import describe_spread, read_scores

UNKNOWN = "not known yet"
_SHOWN_PROBES = 3

Facts = dict[str, str]
Starts = Sequence[Mapping[str, Any]]


def pretraining_facts(
    run: RunDirectory, config: PretrainConfig, state: RunState, history: History, starts: Starts
) -> Facts:
    """The summary of a pre-training run, the most telling first."""
    made = {"Method": config.method.name, "Backbone": config.backbone.name}
    if not config.method.trains:
        steps = "none, the weights are random"
        return {**made, "Device": _device(starts), "Seed": str(config.seed), "Steps": steps}
    return {
        **made,
        "Data": config.data.shown,
        "Images": f"{state.images:,}" if state.images else UNKNOWN,
        "Training time": _training_time(history, config.batch_size),
        "Device": _device(starts),
        **_probe_facts(run, config, history),
        **_progress_facts(config, state, history),
        "Throughput": throughput(history),
    }


def finetuning_facts(
    run: RunDirectory, config: FinetuneConfig, step: int, history: History, starts: Starts
) -> Facts:
    """The summary of a fine-tuning run."""
    return {
        "Task": config.task.name,
        "Backbone": config.backbone,
        **score_facts(run, config),
        "Training time": _training_time(history, config.effective_batch),
        "Device": _device(starts),
        "Steps": f"{step:,} of {config.total_iterations:,}",
        "Batch": f"{config.effective_batch:,} images",
        "Learning rate": readable(config.peak_lr),
        "Throughput": throughput(history),
    }


def score_facts(run: RunDirectory, config: FinetuneConfig) -> Facts:
    """The first two scores of every kind."""
    if config.runs > 1:
        if not run.summary.is_file():
            return {}
        scores = read_summary(run)["scores"]
        first = list(scores.items())[:2]
        return {name.replace("_", " "): describe_spread(spread) for name, spread in first}
    if not run.scores.is_file():
        return {}
    return {
        f"{table.name} {name}": f"{100 * value:.2f}"
        for table in read_scores(run.scores).tables
        for name, value in list(table.summary.items())[:2]
        if math.isfinite(value)
    }


def hardware_facts(starts: Starts, history: History) -> Facts:
    """What a run ran on, and how fast."""
    last = starts[-1] if starts else {}
    cuda = f", CUDA {last['cuda']}" if last.get("cuda") else ""
    return {
        "Device": _device(starts),
        "CPU cores": str(last.get("cores", UNKNOWN)),
        "Software": f"torch {last['torch']}{cuda}" if "torch" in last else UNKNOWN,
        **_choices(last.get("choices", {})),
        "Throughput": throughput(history),
        "Waiting for data": _share(history.of("data_wait")),
        "GPU memory": _memory(history.of("memory_gib")),
        "Started": when(str(starts[0].get("time", UNKNOWN))) if starts else UNKNOWN,
    }


def throughput(history: History) -> str:
    """Images per second of late."""
    speed = history.of("images_per_second")
    return f"{readable(speed.settled().recent)} images/s" if speed else UNKNOWN


def _device(starts: Starts) -> str:
    """The name of the device; several processes have one each."""
    if not starts:
        return UNKNOWN
    last = starts[-1]
    name = str(last.get("device", UNKNOWN))
    if name in ("x86_64", "AMD64", "aarch64", "arm64"):  # all that earlier versions knew of a CPU
        name = f"CPU ({name})"
    processes = last.get("processes", 1)
    return f"{processes} x {name}" if isinstance(processes, int) and processes > 1 else name


def _training_time(history: History, batch_size: int) -> str:
    seconds = history.seconds(batch_size)
    return duration(seconds) if seconds else UNKNOWN


def _probe_facts(run: RunDirectory, config: PretrainConfig, history: History) -> Facts:
    """What frozen features reach, with random weights in brackets where they were measured."""
    shares = [pair for pair in probes_of(run) if pair[0]["is_share"]]
    # Those on the run's own images come first, then what was measured last.
    shares.reverse()
    shares.sort(key=lambda pair: pair[0]["data"] != config.data.source)
    facts: Facts = {}
    for entry, baseline in shares:
        beside = f" (random weights {percent(baseline['value'])})" if baseline else ""
        facts.setdefault(headed(entry["title"]), f"{percent(entry['value'])}{beside}")
    if facts:
        return dict(list(facts.items())[:_SHOWN_PROBES])
    on_the_way = history.of(f"{PROBE_PREFIX}correspondence")
    return {"Correspondence": percent(on_the_way.values[-1])} if on_the_way else {}


def _progress_facts(config: PretrainConfig, state: RunState, history: History) -> Facts:
    total_epochs = _epochs(config, state)
    return {
        "Steps": f"{state.step:,}" + (f" of {state.total_steps:,}" if state.total_steps else ""),
        "Epochs": readable(round(state.epoch or 0, 2))
        + (f" of {total_epochs}" if total_epochs else ""),
        "Batch": f"{config.batch_size:,} images",
        "Final loss" if state.status == "finished" else "Loss": _final_loss(config, history),
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
    named = {
        "precision": "Precision",
        "rendering": "Rendering",
        "cache": "Photo cache",
        "compilation": "Compilation",
        "capture": "Captured steps",
        "workers": "Workers",
    }
    chosen = {
        title: made[name] for name, title in named.items() if isinstance(made.get(name), dict)
    }
    return {
        title: f"{_word(choice.get('value', UNKNOWN))} ({choice.get('reason', '')})"
        for title, choice in chosen.items()
    }


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _share(series: Series | None) -> str:
    return f"{readable(100 * series.settled().recent)} %" if series else UNKNOWN


def _memory(series: Series | None) -> str:
    return f"{readable(max(series.values))} GiB" if series else "none"


def when(time: str) -> str:
    """A recorded time as a person reads it; provenance.json keeps seconds and zone.

    >>> when("2026-05-04T17:30:59+0200")
    '2026-05-04 17:30'
    """
    return time[:16].replace("T", " ")
