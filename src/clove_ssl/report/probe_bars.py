"""Charts that compare probed backbones; the page draws them with plain HTML boxes.

Only scores of one kind, on the same images at the same size, are put side by side. A
share is a bar that begins at 0; a score that is better when lower, or below
zero, is a dot on its axis, since a bar would make the worst the longest. Positions are
percent of the width of the chart, shares are shown in percent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clove_ssl.config.pretraining import shown_source
from clove_ssl.report.curves import Axis, tick_labels, ticks, value_range
from clove_ssl.report.verdict import Entry, percent
from clove_ssl.runs.common_metrics import COMMON
from clove_ssl.runs.metrics import PROBE_PREFIX
from clove_ssl.runs.probe_file import RANDOM, SAME_IMAGES

_SHOWN_BY_BARS = ("stages", "seed")
LOWER_IS_BETTER = frozenset({"alignment", "uniformity"})
_MEANINGS = {metric.name.removeprefix(PROBE_PREFIX): metric.meaning for metric in COMMON}


@dataclass(frozen=True)
class Bar:
    """The score of one backbone."""

    name: str
    stages: str
    value: str
    note: str  # interval, chance level and what else was measured
    place: float  # where its value lies
    whisker: tuple[float, float] | None  # start and length of the interval
    chance: float | None  # where guessing lies
    is_baseline: bool  # random weights
    run: int | None  # the run of the page whose colour it has


@dataclass(frozen=True)
class BarChart:
    """All backbones that were measured on the same images."""

    title: str
    data: str
    meaning: str
    better: Literal["higher", "lower"]
    form: Literal["bar", "dot"]
    is_share: bool
    ticks: tuple[tuple[float, str], ...]
    bars: tuple[Bar, ...]


def bar_charts(probes: Sequence[Entry], colours: Mapping[str, int] | None = None) -> list[BarChart]:
    """One chart per kind of score and kind of data, in the order of ``probes.json``.

    ``colours`` are the numbers of runs by the names of backbones.
    """
    charts: dict[tuple[str, ...], list[Entry]] = {}
    # A network that diverged has no score, and a bar without a length cannot be drawn.
    for probe in (each for each in probes if math.isfinite(each["value"])):
        compared = [str(probe.get(key)) for key in SAME_IMAGES if key not in _SHOWN_BY_BARS]
        charts.setdefault((probe["title"], *compared), []).append(probe)
    return [_chart(members, colours or {}) for members in charts.values()]


def _chart(probes: Sequence[Entry], colours: Mapping[str, int]) -> BarChart:
    kind = str(probes[0].get("figure", ""))
    is_lower = kind in LOWER_IS_BETTER
    values = [value for probe in probes for value in (probe["value"], *_interval(probe))]
    form: Literal["bar", "dot"] = "dot" if is_lower or min(values) < 0 else "bar"
    axis = _axis(values, form)
    positions = ticks(axis.low, axis.high)
    scale = 100 if probes[0]["is_share"] else 1
    labels = tick_labels([scale * position for position in positions])
    return BarChart(
        title=headed(probes[0]["title"]),
        data=_images_of(probes[0]),
        meaning=_MEANINGS.get(kind, ""),
        better="lower" if is_lower else "higher",
        form=form,
        is_share=bool(probes[0]["is_share"]),
        ticks=tuple(zip(map(axis.place, positions), labels, strict=True)),
        bars=tuple(_bar(probe, axis, colours) for probe in probes),
    )


def _images_of(probe: Entry) -> str:
    """On which images a score was found."""
    size = f" at {probe['size']} px" if "size" in probe else ""
    split = f", {probe['test_split']}" if probe.get("test_split") else ""
    limits = {"training": probe.get("train_images"), "test": probe.get("test_images")}
    limited = "".join(f", up to {n:,} {part} images" for part, n in limits.items() if n is not None)
    return f"on {shown_source(probe['data'])}{size}{split}{limited}"


def headed(title: str) -> str:
    """The name of a score as a heading; the letter of k-NN stays small."""
    return title if title.startswith("k-") else title[:1].upper() + title[1:]


def _axis(values: Sequence[float], form: str) -> Axis:
    """Bars begin at 0; dots lie anywhere, with some air around them."""
    if form == "bar":
        return Axis(0.0, max(values) * 1.05 or 1.0, 0, 100)
    low, high = value_range(values)
    return Axis(low, high, 0, 100)


def _bar(probe: Entry, axis: Axis, colours: Mapping[str, int]) -> Bar:
    whisker = None
    if ends := sorted(axis.place(end) for end in _interval(probe)):
        whisker = (ends[0], ends[1] - ends[0])
    chance = probe.get("chance")
    name = str(probe["backbone"])
    return Bar(
        name=name,
        stages=", ".join(probe.get("stages", ())),
        value=_text(probe["value"], probe),
        note=_note(probe),
        place=axis.place(probe["value"]),
        whisker=whisker,
        chance=None if chance is None else axis.place(chance),
        is_baseline=name.startswith(RANDOM),
        run=colours.get(name),
    )


def _note(probe: Entry) -> str:
    parts = []
    if _interval(probe):
        parts.append(" to ".join(_text(end, probe) for end in _interval(probe)))
    if probe.get("chance") is not None:
        parts.append(f"chance {_text(probe['chance'], probe)}")
    if "accuracy" in probe:
        parts.append(f"pixel accuracy {percent(probe['accuracy'])}")
    if probe.get("is_outdated"):
        parts.append("weights that the run had before it went on")
    return ", ".join(parts)


def _interval(probe: Entry) -> Sequence[float]:
    return probe.get("interval") or ()


def _text(value: float, probe: Entry) -> str:
    return percent(value) if probe["is_share"] else f"{value:.3g}"
