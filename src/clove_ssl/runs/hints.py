"""Plain sentences about the figures of a run, for its report and for ``clove doctor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clove_ssl.runs.figures import POSITION, in_reading_order
from clove_ssl.runs.history import History
from clove_ssl.runs.judges import JUDGES, Level, Verdict, judge_broken
from clove_ssl.runs.limits import Limits


@dataclass(frozen=True)
class Hint:
    """What a figure says, in words."""

    metric: str
    level: Level
    text: str


def hints(metrics: Sequence[Mapping[str, float]], limits: Limits) -> list[Hint]:
    """One sentence for every figure that can be judged, in the order of the report."""
    history = History(metrics)
    names = in_reading_order(history.names() - POSITION)
    verdicts = [(name, _verdict(name, history, limits)) for name in names]
    return [Hint(name, *verdict) for name, verdict in verdicts if verdict is not None]


def worrying(found: Sequence[Hint]) -> list[Hint]:
    """The hints somebody should act on, the worst first."""
    return [hint for level in ("bad", "look") for hint in found if hint.level == level]


def _verdict(name: str, history: History, limits: Limits) -> Verdict | None:
    since = history.broken_since(name)
    if since is not None:
        return judge_broken(name, since)
    series = history.of(name)
    if series is None or name not in JUDGES:
        return None
    return JUDGES[name](series, history, limits)
