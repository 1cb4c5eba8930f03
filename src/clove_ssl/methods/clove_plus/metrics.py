"""What CLoVE Plus logs beyond CLoVE, and what is healthy."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from clove_ssl.methods.clove.metrics import cell_metrics
from clove_ssl.methods.metrics import judge_missing_spread, of_parts
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import Limits, Metric, Verdict, percent, readable

if TYPE_CHECKING:
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.clove_plus.config import CLoVEPlusConfig


def clove_plus_metrics(config: CLoVEPlusConfig, run: PretrainConfig) -> Iterator[Metric]:
    """The metrics of a run with these options; its margin is no constant part of the sum."""
    stages = {f"cells_{stage}": f"cells of stage {stage}" for stage in config.stages}
    yield from of_parts("loss", {"cells": "cells", "whole": "whole images", **stages})
    yield BALANCE
    yield from cell_metrics(config, run)
    for base in ("cos_positive", "cos_negative"):
        yield from of_parts(base, stages)
    for base in ("invariance", "variance", "covariance"):
        judge = judge_missing_spread(config.whole.variance) if base == "variance" else None
        yield from of_parts(base, {"whole": "whole images"}, judge)
    yield from (_place_share("height"), _place_share("width"))


def _judge_balance(ratio: Series, history: History, limits: Limits) -> Verdict:
    now, usual = readable(ratio.recent), median(ratio.values)
    if ratio.recent > 10 * usual or ratio.recent < usual / 10:
        return "look", (
            f"{now}, far from the usual {readable(usual)}: one of the two losses hardly pulls any "
            "more. See which of them stands still."
        )
    return "good", f"{now} now, {readable(usual)} usually."


BALANCE = Metric(
    "balance",
    "Balance of two losses",
    "loss",
    "The gradient of the loss on cells divided by that of the loss on whole images, where both "
    "meet; it settles within a few hundred steps.",
    judge=_judge_balance,
)


def _judge_place(share: Series, history: History, limits: Limits) -> Verdict:
    return "good", f"{percent(share.recent_mean)} of a cell's place can be read from its feature."


def _place_share(axis: str) -> Metric:
    return Metric(
        f"place_share_{axis}",
        f"Place in the features, {axis}",
        "features",
        f"How much of a cell's {axis} in the view a linear map reads from its feature; less leaves "
        "more room for what the cell shows.",
        is_share=True,
        judge=_judge_place,
    )
