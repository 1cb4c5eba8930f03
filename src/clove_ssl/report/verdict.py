"""The verdict on a run: one sentence that needs no knowledge of the method, and what to do next.

``clove probe``, ``clove doctor`` and the report all end, or begin, with it. What frozen features
can do beside random weights counts most; where that was not measured, how training went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from clove_ssl.config.finetuning import RANDOM as FROM_SCRATCH
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig, shown_source
from clove_ssl.errors import counted
from clove_ssl.runs.directory import RunDirectory, read_config
from clove_ssl.runs.hints import Hint, hints, worrying
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.runs.probe_file import RANDOM, SAME_IMAGES, entries_about, read_probes
from clove_ssl.runs.state import RunState, read_state
from clove_ssl.runs.summary_file import read_summary
from clove_ssl.tasks.scoring.scores import read_scores

Standing = Literal["good", "early", "look", "bad"]
Entry = Mapping[str, Any]
"""An entry of ``probes.json``, as ``runs/probe_file.py`` reads it."""
FEW_STEPS = 100
"""Optimizer steps after which no network has learned anything worth using."""
_CLEAR_GAIN = 0.02
_NOTHING_FOUND, _LITTLE_FOUND = 0.005, 0.05
_TOLD_FIRST = ("correspondence", "segmentation", "linear", "knn", "retrieval", "keypoints")


@dataclass(frozen=True)
class RunVerdict:
    """What to think of a run, and what to do next."""

    standing: Standing
    headline: str
    text: str
    next_step: str

    def spoken(self) -> str:
        """All of it in one line, for a terminal."""
        return f"{self.headline}. {self.text} {self.next_step}"


class Scored(NamedTuple):
    """The score by which a fine-tuning is judged."""

    name: str
    value: float  # from 0 to 1; not a number where there was nothing to measure
    where: str  # on what it was found

    @property
    def shown(self) -> str:
        """Name and value in percent."""
        return f"{self.name.replace('_', ' ')} {100 * self.value:.1f}"


def run_verdict(run: RunDirectory) -> RunVerdict:
    """What to think of a run, whatever kind it is."""
    config = read_config(run)
    if isinstance(config, FinetuneConfig):
        return finetuning_verdict(run, config)
    metrics = read_metrics(run)
    state = read_state(run, config, metrics)
    return pretraining_verdict(
        run, config, state, hints(metrics, config, total_steps=state.total_steps)
    )


def pretraining_verdict(
    run: RunDirectory, config: PretrainConfig, state: RunState, found: Sequence[Hint]
) -> RunVerdict:
    """The verdict on a pre-training run, at any time of its life."""
    if not config.method.trains:
        return RunVerdict(
            "good",
            "Nothing was trained",
            "These are random weights: the baseline that other runs are compared with.",
            f"Compare them with a run: clove probe RUN {run.path}",
        )
    problems = [hint for hint in worrying(found) if hint.level == "bad"]
    if problems:
        title = problems[0].metric.title.lower()
        return RunVerdict(
            "bad",
            "Something is wrong",
            f"It shows in the {title}.",
            problems[0].text,
        )
    if state.status != "finished":
        return _unfinished(run, state)
    return compared_with_random(run, config) or _unmeasured(run, state)


def finetuning_verdict(
    run: RunDirectory, config: FinetuneConfig, *, floor: RunDirectory | None = None
) -> RunVerdict:
    """The verdict on a fine-tuning run, or on several that differ in their seed alone.

    ``floor`` is the same fine-tuning of random weights, where there is one.
    """
    scored = _headline_score(run)
    if scored is None:
        return RunVerdict(
            "early",
            "Not scored yet",
            f"The {config.task.name} model is still being trained.",
            f"If nothing is running, go on with: clove resume {run.path}",
        )
    if weak := _weak(scored, config):
        return weak
    shown = f"{scored.shown[:1].upper()}{scored.shown[1:]}"
    text, next_step = _beside_the_floor(
        run, config, None if floor is None else _headline_score(floor)
    )
    return RunVerdict("good", f"{shown} of 100 {scored.where}", text, next_step)


def _weak(scored: Scored, config: FinetuneConfig) -> RunVerdict | None:
    """The verdict on a score that is no use yet."""
    if math.isnan(scored.value):
        return RunVerdict(
            "look",
            "Nothing could be measured",
            f"There is no {scored.name.replace('_', ' ')} {scored.where}, since the test images "
            "have nothing that counts for it.",
            "Check their labels.",
        )
    if scored.value < _NOTHING_FOUND:
        return RunVerdict(
            "bad",
            "The model finds nothing",
            f"It scores {scored.shown} {scored.where} after {config.total_iterations:,} steps.",
            "Train longer; if that does not help, look at the pictures of truth and prediction, "
            "check the labels, and try another --lr.",
        )
    if scored.value < _LITTLE_FOUND:
        return RunVerdict(
            "look",
            "The model has begun to find things",
            f"It scores {scored.shown} of 100 {scored.where}.",
            "Train longer, or with more labelled images.",
        )
    return None


def _beside_the_floor(
    run: RunDirectory, config: FinetuneConfig, floor: Scored | None
) -> tuple[str, str]:
    """What a score means, as far as random weights tell, and what to do next."""
    pictures = "The pictures show where the model is right and where it is not."
    if config.backbone == FROM_SCRATCH:
        return (
            f"It started from random weights: the baseline for pre-trained ones. {pictures}",
            "Fine-tune a pre-trained backbone in the same way, and put both runs on one page: "
            "clove report RUN RUN",
        )
    if floor is None or math.isnan(floor.value):
        return pictures, (
            "To see what pre-training gains, fine-tune random weights, too, and put both runs on "
            "one page: clove report RUN RUN"
        )
    return (
        f"Random weights, trained for as long, reach {100 * floor.value:.1f}; part of the "
        f"difference is chance. {pictures}",
        f"Use it: clove predict {run.path} IMAGES --out FOLDER. To be sure of the difference, "
        "repeat both with --runs 3.",
    )


def _headline_score(run: RunDirectory) -> Scored | None:
    """The first score of a run, or its mean over several."""
    return _repeated_score(run) if run.summary.is_file() else _score(run)


def _score(run: RunDirectory) -> Scored | None:
    """The first score of a run, and on what it was found."""
    scores = read_scores(run.scores) if run.scores.is_file() else None
    if scores is None or not scores.by_name():
        return None
    return Scored(*scores.headline, f"on {counted(scores.images, 'test image')}")


def _repeated_score(run: RunDirectory) -> Scored | None:
    """The mean of the first score of several runs."""
    content = read_summary(run)
    for name, spread in content["scores"].items():
        return Scored(name, spread["mean"], f"on average over {content['runs']} runs")
    return None


def compared_with_random(run: RunDirectory, config: PretrainConfig) -> RunVerdict | None:
    """What the probes of a run say; nothing where random weights were not measured beside it."""
    measured = [entry for entry, baseline in probes_of(run) if baseline is not None]
    # The run's own images come first: they are what it was made for. Then what was measured last.
    measured.reverse()
    on_own = [entry for entry in measured if entry["data"] == config.data.source]
    for kind in _TOLD_FIRST:
        for entry in (*on_own, *measured):
            if entry.get("figure") == kind:
                return judge_entry(entry, read_probes(run))
    return None


def probes_of(run: RunDirectory) -> list[tuple[Entry, Entry | None]]:
    """What was measured of the weights of a run, with random ones measured beside them."""
    entries = read_probes(run)
    current, _ = entries_about(run, entries)
    return [(entry, _baseline(entry, entries)) for entry in current]


def probe_verdict(entries: Sequence[Entry]) -> dict[str, RunVerdict]:
    """The verdict on every trained backbone that was probed, by its name."""
    verdicts: dict[str, RunVerdict] = {}
    for kind in _TOLD_FIRST:
        for entry in entries:
            name = str(entry["backbone"])
            if entry.get("figure") == kind and not name.startswith(RANDOM):
                found = judge_entry(entry, entries)
                if found is not None:
                    verdicts.setdefault(name, found)
    return verdicts


def judge_entry(entry: Entry, entries: Sequence[Entry]) -> RunVerdict | None:
    """A score beside that of random weights on the same images, in words."""
    baseline = _baseline(entry, entries)
    if baseline is None:
        return None
    gain = entry["value"] - baseline["value"]  # not a number where a network diverged
    interval = entry.get("gain_interval")
    text = f"{_sentence(entry)}; random weights {_short(baseline)}."
    if interval is not None and interval[0] <= 0 <= interval[1]:
        return RunVerdict(
            "look",
            "No better than random weights yet",
            f"{text} These images are too few to tell whether that difference is real.",
            "Train longer, or on more images.",
        )
    if not gain > 0:
        return RunVerdict(
            "bad",
            "Worse than random weights",
            text,
            "Look at the warnings of the run; then try a smaller --lr, and train longer.",
        )
    if gain < _CLEAR_GAIN:
        return RunVerdict(
            "look",
            "Hardly better than random weights",
            text,
            "It has begun to learn: train longer, or on more images.",
        )
    if entry.get("started_from") is not None:
        return _after_a_start(entry, text)
    return RunVerdict(
        "good",
        "It has learned",
        text,
        f"Use it: clove finetune TASK --backbone {entry['backbone']}. Longer training may still "
        "help.",
    )


def _after_a_start(entry: Entry, text: str) -> RunVerdict:
    """Random weights are no measure for a run that began with trained ones."""
    start, name = str(entry["started_from"]), entry["backbone"]
    compare = "fine-tune both" if start == "imagenet" else f"clove probe {name} {start}"
    return RunVerdict(
        "look",
        "Better than random weights",
        f"{text} But it started from trained weights ({start}), which are no worse than random "
        "ones either.",
        f"To see what its own training has added, compare it with those: {compare}",
    )


def _unfinished(run: RunDirectory, state: RunState) -> RunVerdict:
    total = f" of {state.total_steps:,}" if state.total_steps else ""
    place = f"step {state.step:,}{total}" if state.step else "no step logged yet"
    if state.status == "interrupted":
        return RunVerdict(
            "look",
            "Interrupted",
            f"The run stopped before its end ({place}).",
            f"Go on with: clove resume {run.path}",
        )
    is_early = state.step < max(FEW_STEPS, (state.total_steps or 0) / 10)
    if is_early:
        return RunVerdict(
            "early",
            "Too early to tell",
            f"The run has only begun ({place}).",
            "Let it run; the first steps say little.",
        )
    return RunVerdict(
        "early",
        "On its way",
        f"Nothing looks wrong so far ({place}).",
        "Let it run; what the features can do is measured at the end.",
    )


def _unmeasured(run: RunDirectory, state: RunState) -> RunVerdict:
    step = f"clove probe {run.path}"
    if state.step < FEW_STEPS:
        images = f" on {state.images:,} images" if state.images else ""
        return RunVerdict(
            "early",
            "Too short to tell",
            f"It was trained for {state.step:,} steps{images}, which is a trial, not training.",
            f"Train longer. To measure what it has learned: {step}",
        )
    return RunVerdict(
        "look",
        "Trained, but not measured",
        "Training finished without a problem; what the features can do has not been measured.",
        f"Measure them beside random weights: {step}",
    )


def _baseline(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
    """The same measurement of random weights."""
    found = [
        other
        for other in entries
        if str(other["backbone"]).startswith(RANDOM)
        and all(other.get(key) == entry.get(key) for key in SAME_IMAGES)
    ]
    named = [other for other in found if other["backbone"] == entry.get("baseline")]
    return next(iter([*named, *found]), None)


def _sentence(entry: Entry) -> str:
    if entry["figure"] == "correspondence":
        photos = "scene" if entry["data"] == "scenes" else "photo"
        value = percent(entry["value"])
        return f"Its features find the same place in two views of a {photos} {value} of the time"
    return f"Its features reach {entry['title']} {_shown(entry)} on {shown_source(entry['data'])}"


def _short(entry: Entry) -> str:
    if entry["figure"] == "correspondence":
        return f"do so {percent(entry['value'])} of the time"
    return f"reach {_shown(entry)}"


def _shown(entry: Entry) -> str:
    return percent(entry["value"]) if entry["is_share"] else f"{entry['value']:.3g}"


def percent(share: float) -> str:
    """A share as probes tell it."""
    return f"{100 * share:.1f} %"
