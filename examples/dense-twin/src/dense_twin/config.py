"""The options of the dense twin; no torch, so that asking for help stays quick."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.methods.config import MatchingConfig
from clove_ssl.methods.metrics import positive_cosine
from clove_ssl.runs.history import History, Series
from clove_ssl.runs.metric_table import Limits, Metric, Verdict, percent

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class DenseTwinConfig(MethodConfig):
    """Two views of an image, each of which predicts the cells of the other."""

    name: ClassVar[str] = "dense-twin"

    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(local_count=0))
    channels: int = 128
    """Channels of an embedding."""
    threshold: float = 0.7
    """Cells match when their centres are closer than this many cell diagonals."""

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def build(self, backbone: Backbone) -> Method:
        from dense_twin.method import DenseTwin

        return DenseTwin(self, backbone)

    @property
    def matching_rule(self) -> MatchingConfig:
        return MatchingConfig(threshold=self.threshold, coordinates="pixel")

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        yield positive_cosine("cells")
        yield Metric(
            "cells_matched",
            "Cells with a match",
            "matching",
            "Share of cells whose place the other view shows, too.",
            is_share=True,
            judge=judge_matched,
        )


def judge_matched(share: Series, history: History, limits: Limits) -> Verdict:
    """Is it healthy, and what should a user know or do?"""
    text = f"{percent(share.recent)} of the cells take part."
    if share.recent > 0.2:
        return "good", text
    return "look", f"{text} Use larger crops: --method.views.global-scale 0.5 1."
