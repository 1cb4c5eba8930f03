"""What CLoVE logs, and what is healthy; docs/health.md explains the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.metrics import (
    NEGATIVE_COSINE,
    TEACHER_DISTANCE,
    matched_pairs,
    positive_cosine,
    unmatched_cells,
    unmatched_images,
)
from clove_ssl.runs.common_metrics import LOSS, judge_fall
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import Judge, Limits, Metric, Verdict, percent, readable

if TYPE_CHECKING:
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.clove.config import CLoVEConfig, LossConfig

EXPECTED_PAIRS = {0.5: (64.0, 23.0), 0.7: (122.0, 44.0), 0.9: (200.0, 70.0)}
"""Matches per image by threshold: large with large view, small with large view. Simulated with
the default views and photos of 500 x 375 pixels."""


def clove_metrics(config: CLoVEConfig, run: PretrainConfig) -> Iterator[Metric]:
    """The metrics of a run with these options."""
    if config.loss.kind == "ranking" and config.loss.margin >= _reach(config.loss):
        meaning = "What training minimises, including a constant margin."
        yield replace(LOSS, meaning=meaning, judge=_judge_margin(config.loss))
    yield LOSS_EXCESS
    yield from cell_metrics(config, run)


def cell_metrics(config: CLoVEConfig, run: PretrainConfig) -> Iterator[Metric]:
    """What is logged about cells, their matches and their attention."""
    yield from (positive_cosine("cells"), NEGATIVE_COSINE)
    yield from _matching(config, run)
    yield from (_short_cells(config.loss), ATTENTION_ENTROPY)
    if config.has_teacher:
        yield TEACHER_DISTANCE


def _reach(loss: LossConfig) -> float:
    """Largest distance of ``loss`` from its margin, with all cosines at their extremes.

    A larger margin is a constant part of the loss: the hinge never closes.
    """
    factor = 2.0 if loss.form == "release" else 1.0
    return factor * (loss.positive_weight + 1)


def _judge_margin(config: LossConfig) -> Judge:
    margin = readable(config.margin)

    def judge(loss: Series, history: History, limits: Limits) -> Verdict:
        if abs(loss.recent - config.margin) > _reach(config):
            return "look", (
                f"{readable(loss.recent)} is further from the margin of {margin} than cosines can "
                "move it. In the paper's form images without a match count as 0: see how many "
                "there are."
            )
        return "good", (
            f"{readable(loss.recent)} lies near the margin of {margin}, as it must: the margin is "
            "a constant. Progress shows in the loss minus the margin."
        )

    return judge


def _matching(config: CLoVEConfig, run: PretrainConfig) -> Iterator[Metric]:
    """References exist for the default crops with 7 x 7 and 3 x 3 cells only."""
    geometry = ("global_size", "global_scale", "local_size", "local_scale", "ratio")
    usual = ViewsConfig()
    same_crops = all(getattr(config.views, key) == getattr(usual, key) for key in geometry)
    same_grid = run.backbone.stage in ("last", "c5") and run.backbone.output_stride == 32
    large = small = None
    if same_crops and same_grid and config.matching.unit == "larger":
        large, small = EXPECTED_PAIRS.get(config.matching.threshold, (None, None))
    yield matched_pairs("global", large)
    yield matched_pairs("local", small)
    yield unmatched_images(_reference("2 %", "16 %") if large else "")
    yield unmatched_cells(_reference("15 %", "31 %") if large else "")


def _reference(usual: str, elongated: str) -> str:
    """What the simulation gives."""
    return f" 4:3 photos give {usual} with these views, photos of 800 x 300 give {elongated}."


def _short_cells(loss: LossConfig) -> Metric:
    """Cells that do not find the negatives that the loss asks for: ``top_k``, or any at all."""
    few, asked = f"fewer than {loss.top_k} negatives", f"the {loss.top_k} negatives"
    lack = f"fewer than {asked} that the loss asks for; it averages those there are"
    avoided = "a smaller --method.matching.threshold or --method.loss.top-k avoid it"
    if loss.kind == "infonce":
        few, asked, lack = "no negatives", "the negatives", "no negatives, so they learn nothing"
        avoided = "or a smaller --method.matching.threshold avoid it"

    def judge(share: Series, history: History, limits: Limits) -> Verdict:
        if share.recent == 0:
            return "good", f"Every cell has {asked} that the loss asks for."
        if share.recent < 0.01:
            return "good", f"{percent(share.recent)} of the cells have {few}, too few to matter."
        if share.recent > 0.99 and loss.kind != "infonce":
            # The grids are that small, which was somebody's choice.
            return "good", f"Views of this size have {lack}."
        return "look", (
            f"{percent(share.recent)} of the cells have {lack}. Larger views, {avoided}."
        )

    return Metric(
        "cells_short_of_negatives",
        "Cells short of negatives",
        "matching",
        f"Share of student cells with {few} to choose from.",
        is_share=True,
        judge=judge,
    )


def _judge_attention(entropy: Series, history: History, limits: Limits) -> Verdict:
    now = readable(entropy.recent)
    if entropy.recent > 0.995 and limits.is_early(entropy, history):
        return "good", f"{now}: every cell still gets the same average, as early in a run."
    if entropy.recent > 0.995:
        return "look", (
            f"{now} is uniform: every cell gets the same average of its view. A smaller "
            "--method.attention.temperature sharpens it."
        )
    if entropy.recent < 0.05:
        return "look", f"{now} is almost 0: each cell looks at one cell, so context adds nothing."
    return "good", f"{now}: cells look at some cells more than at others."


LOSS_EXCESS = Metric(
    "loss_excess",
    "Loss minus margin",
    "loss",
    "The loss without its constant: this is the curve that shows progress.",
    judge=judge_fall,
    distance_from="the margin",
)
ATTENTION_ENTROPY = Metric(
    "attention_entropy",
    "Entropy of attention",
    "features",
    "1 when a cell looks at all cells alike, 0 when it looks at a single one.",
    judge=_judge_attention,
)
