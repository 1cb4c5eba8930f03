"""Every choice of CP2 (Wang et al., 2022), with the published ones as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import Areas, Extent, Range, Ranged, Several, Weight, Width
from clove_ssl.config.views import PasteSpec, ViewSpec
from clove_ssl.methods.config import HeadConfig, QueuedConfig
from clove_ssl.methods.metrics import of_parts
from clove_ssl.runs.metric_table import Metric

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(Ranged):
    """Atrous spatial pyramid pooling between the backbone and the head."""

    channels: Width = 512
    """Channels of every branch, and of the result."""
    dilations: Annotated[tuple[Annotated[int, Range(1, 1024)], ...], Several(least=1)] = (
        1,
        6,
        12,
        18,
    )
    """One branch for each dilation, in cells; the image's mean is a further branch."""


@dataclass(frozen=True, kw_only=True)
class CP2Config(QueuedConfig):
    """Copy-paste contrastive pre-training (Wang et al., 2022)."""

    name: ClassVar[str] = "cp2"
    paper: ClassVar[str] = "Wang et al., 2022"
    kinds: ClassVar[tuple[Kind, ...]] = ("local", "dense")
    status: ClassVar[str] = "equal to the released code"

    head: HeadConfig = field(default_factory=lambda: HeadConfig(hidden=512))
    pyramid: PyramidConfig = field(default_factory=PyramidConfig)
    dense_weight: Weight = 0.2
    """Weight of the loss between cells; the loss between foregrounds has weight 1."""
    paste_area: Areas = (0.5, 0.8)
    """Smallest and largest share of a view that is pasted."""
    paste_ratio: Extent = (0.8, 1.25)
    """Narrowest and widest pasted rectangle, as width divided by height."""

    def view_specs(self) -> tuple[ViewSpec, ...]:
        pastes = [
            PasteSpec(area=self.paste_area, ratio=self.paste_ratio, neighbour=neighbour)
            for neighbour in (1, 2)
        ]
        pairs = zip(self.views.specs(), pastes, strict=True)
        return tuple(replace(spec, paste=paste) for spec, paste in pairs)

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.cp2.method import CP2

        return CP2(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        yield from super().metrics(run)
        parts = {"global": "whole images", "dense": "cells"}
        yield from of_parts("loss", parts, self.judge_loss(run))
        yield Metric(
            "foreground_cells",
            "Foreground",
            "matching",
            "Share of cells that show the pasted foreground.",
            is_share=True,
        )

    def summary(self) -> dict[str, str]:
        common = super().summary()
        low, high = self.paste_area
        return {
            **common,
            "views": f"{common['views']}, {low:.0%} to {high:.0%} pasted on other images",
            "loss": f"{common['loss']}, {self.dense_weight} dense",
        }
