"""Plain sentences about the metrics of a run, for its report and for ``clove doctor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.runs.common_metrics import COMMON
from clove_ssl.runs.history import History
from clove_ssl.runs.metric_table import POSITION, Level, Limits, Metric, MetricTable, Verdict


@dataclass(frozen=True)
class Hint:
    """What a metric says, in words."""

    metric: Metric
    level: Level
    text: str


def metric_table(config: PretrainConfig) -> MetricTable:
    """The metrics of all runs and those of a run's own method."""
    return MetricTable((*COMMON, *config.method.metrics(config)))


def hints(
    rows: Sequence[Mapping[str, float]], config: PretrainConfig, *, total_steps: int | None = None
) -> list[Hint]:
    """One sentence for every logged metric that has news, in the order of the report.

    ``total_steps``, where they are known, tell what is early in a run.
    """
    history, limits = History(rows), _limits(config, total_steps)
    metrics = metric_table(config).in_reading_order(history.names() - POSITION)
    verdicts = [(metric, _verdict(metric, history, limits)) for metric in metrics]
    return [Hint(metric, *verdict) for metric, verdict in verdicts if verdict is not None]


def worrying(found: Sequence[Hint]) -> list[Hint]:
    """The hints somebody should act on, the worst first."""
    return [hint for level in ("bad", "look") for hint in found if hint.level == level]


def _limits(config: PretrainConfig, total_steps: int | None) -> Limits:
    return Limits(
        min_std=config.health.min_std,
        min_rank=config.health.min_rank,
        warmup_epochs=config.optimizer.warmup_epochs,
        total_steps=total_steps,
    )


def _verdict(metric: Metric, history: History, limits: Limits) -> Verdict | None:
    since = history.broken_since(metric.name)
    if since is not None:
        return _judge_broken(metric, since)
    series = history.of(metric.name)
    if series is None or metric.judge is None:
        return None
    return metric.judge(series, history, limits)


def _judge_broken(metric: Metric, since: int) -> Verdict:
    """A metric that has been infinite or not a number since a step."""
    if metric.name == "gradient_norm":
        return "look", (
            f"Not finite since step {since}. With fp16 single steps like this are normal and are "
            "skipped; if it lasts, use --precision bf16 or fp32, or a smaller --lr."
        )
    return "bad", (
        f"Not a number since step {since}. Start again with a smaller --lr or with "
        "--precision fp32."
    )
