"""What the runs of a comparison say: scores by backbone and number of labels, and what they mean.

Scores lie between 0 and 1 here and in ``labels.json``; people read them in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from clove_ssl.errors import unknown_name
from clove_ssl.label_curves.arms import Arm, reference
from clove_ssl.label_curves.plan import LabelCell, LabelPart, LabelPlan
from clove_ssl.tasks.scoring.scores import read_scores

NOTHING = "–"


@dataclass(frozen=True)
class LabelPoint:
    """The scores of one backbone on one part of the labels, one for every seed that is done."""

    images: int
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    def shown(self) -> str:
        """Mean and standard deviation in percent."""
        if not self.values:
            return NOTHING
        spread = f" ± {100 * stdev(self.values):.1f}" if len(self.values) > 1 else ""
        return f"{100 * self.mean:.1f}{spread}"


@dataclass(frozen=True)
class LabelLine:
    """One backbone: its scores, the fewest labels first."""

    name: str
    points: tuple[LabelPoint, ...]

    @property
    def measured(self) -> tuple[LabelPoint, ...]:
        """The points that have a score."""
        return tuple(point for point in self.points if point.values)


@dataclass(frozen=True)
class LabelCurve:
    """What a comparison has found so far."""

    score: str
    lines: tuple[LabelLine, ...]
    reference: str
    """The backbone that the others are compared with."""

    def verdict(self) -> list[str]:
        """What pre-training buys, a sentence or two for every backbone but the reference."""
        lines = {line.name: line for line in self.lines}
        base = lines.pop(self.reference)
        told = [sentence for line in lines.values() for sentence in _compared(line, base, self)]
        if told and max(len(p.values) for line in self.lines for p in line.points) == 1:
            told.append("Every score comes from one run; --runs 3 shows how much of this is luck.")
        return told


def collect(plan: LabelPlan) -> LabelCurve:
    """Read the scores of all cells that are done."""
    scores = {cell.name: scores_of(plan, cell) for cell in plan.cells if plan.is_done(cell)}
    score = plan.config.score or next((next(iter(each)) for each in scores.values()), "")
    for each in scores.values():
        if score not in each:
            raise unknown_name("score (--score)", score, each)
    known = {name: each[score] for name, each in scores.items() if not math.isnan(each[score])}
    lines = tuple(LabelLine(arm.name, _points_of(plan, arm, known)) for arm in plan.arms)
    return LabelCurve(score, lines, reference(plan.arms).name)


def _points_of(plan: LabelPlan, arm: Arm, known: Mapping[str, float]) -> tuple[LabelPoint, ...]:
    """The scores of one backbone, those of a part together."""
    mine = [cell for cell in plan.cells if cell.arm is arm and cell.name in known]
    return tuple(
        LabelPoint(part.images, tuple(known[cell.name] for cell in mine if cell.part is part))
        for part in plan.parts
    )


def scores_of(plan: LabelPlan, cell: LabelCell) -> dict[str, float]:
    """All scores of a cell that is done, by name."""
    return read_scores(plan.folder.run(cell.name).scores).by_name()


def _compared(line: LabelLine, base: LabelLine, curve: LabelCurve) -> Iterator[str]:
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(line.points, base.points, strict=True)
        if mine.values and theirs.values
    ]
    if not pairs:
        return
    if saved := _saving(line, base):
        mine, theirs = saved
        yield (
            f"With {mine.images:,} labelled images {line.name} reaches {curve.score} "
            f"{100 * mine.mean:.1f}; {base.name} needs {theirs.images:,} for "
            f"{100 * theirs.mean:.1f}: {theirs.images / mine.images:.3g} times as many labels."
        )
    elif any(mine.images < theirs.images for mine in line.measured for theirs in base.measured):
        yield (
            f"{line.name} never does as well as {base.name} does with a larger part of the labels."
        )
    gains = [f"{_points(mine, theirs)} with {mine.images:,}" for mine, theirs in pairs]
    yield f"{line.name} against {base.name}, in points of {curve.score}: {', '.join(gains)}."


def _saving(line: LabelLine, base: LabelLine) -> tuple[LabelPoint, LabelPoint] | None:
    """Fewer labels of one line that do as well as more of the other: the largest saving."""
    pairs = [
        (mine, theirs)
        for mine in line.measured
        for theirs in base.measured
        if mine.images < theirs.images and mine.mean >= theirs.mean > 0
    ]
    return max(
        pairs, key=lambda pair: (pair[1].images / pair[0].images, pair[1].mean), default=None
    )


def _points(mine: LabelPoint, theirs: LabelPoint) -> str:
    return f"{100 * (mine.mean - theirs.mean):+.1f}"


def table_rows(plan: LabelPlan, curve: LabelCurve) -> list[list[str]]:
    """A row for every part of the labels, a column for every backbone; a head."""
    rows = [["labels", "images", "steps", *(line.name for line in curve.lines)]]
    for number, part in enumerate(plan.parts):
        scores = [line.points[number].shown() for line in curve.lines]
        rows.append([f"{part.percent:g} %", f"{part.images:,}", f"{part.iterations:,}", *scores])
    return rows


def content(plan: LabelPlan, curve: LabelCurve, failures: Mapping[str, str]) -> dict[str, Any]:
    """Everything that was found, for other programs."""
    shared = plan.config.finetuning
    return {
        "task": shared.task.name,
        "data": str(shared.data.root or shared.data.train_annotations),
        "score": curve.score,
        "train_images": plan.train_images,
        "test_images": plan.test_images,
        "reference": curve.reference,
        "backbones": [
            {"name": arm.name, "backbone": arm.backbone, "architecture": arm.architecture}
            for arm in plan.arms
        ],
        "parts": [_part_content(part) for part in plan.parts],
        "cells": [_cell_content(plan, cell, failures) for cell in plan.cells],
        "verdict": curve.verdict(),
    }


def _part_content(part: LabelPart) -> dict[str, Any]:
    return {
        "percent": part.percent,
        "images": part.images,
        "iterations": part.iterations,
        "batch_size": part.fit.config.effective_batch,
    }


def _cell_content(plan: LabelPlan, cell: LabelCell, failures: Mapping[str, str]) -> dict[str, Any]:
    done = plan.is_done(cell)
    scores = scores_of(plan, cell) if done else {}
    return {
        "run": cell.name,
        "backbone": cell.arm.name,
        "percent": cell.part.percent,
        "images": cell.part.images,
        "seed": cell.seed,
        "iterations": cell.part.iterations,
        "done": done,
        "failure": failures.get(cell.name),
        "scores": {name: None if math.isnan(value) else value for name, value in scores.items()},
    }


def waiting(plan: LabelPlan, failures: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Cells that are not done, and why, where that is known."""
    return [(c.name, failures.get(c.name, "")) for c in plan.cells if not plan.is_done(c)]
