"""Every choice of VICRegL (Bardes et al., 2022).

Defaults are the published values, except for two oddities of the released
program: ``mirror_grid`` and the second number of ``matches`` say what it does,
and the recipe ``vicregl-r50-300ep`` follows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import Kind, MethodConfig
from clove_ssl.config.ranges import Candidates, Share, Width
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.config import VarianceWeights, wide_crops
from clove_ssl.methods.metrics import judge_missing_spread, of_parts

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class VarianceConfig(VarianceWeights):
    """The weights of VICReg's terms, for whole images and for cells alike."""

    alpha: Share = 0.75
    """Weight of the loss on whole images; the loss on cells has weight 1 - alpha."""


@dataclass(frozen=True, kw_only=True)
class VICRegLConfig(MethodConfig):
    """VICReg on whole images and on matched cells (Bardes et al., 2022)."""

    name: ClassVar[str] = "vicregl"
    paper: ClassVar[str] = "Bardes et al., 2022"
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "dense")
    status: ClassVar[str] = "equal to the released code"

    views: ViewsConfig = field(default_factory=lambda: wide_crops("bicubic"))
    global_width: Width = 8192
    """Channels of the three layers that expand the mean of a map."""
    local_width: Width = 512
    """Channels of the three layers that expand every cell."""
    matches: tuple[Candidates, Candidates] = (20, 20)
    """Closest pairs of cells in the image that count, from the first view of a pair and from the
    second, or all where a small view has fewer cells (the released program has 20 and 4)."""
    mirror_grid: bool = True
    """Mirror the positions of cells with the image; the released program does not."""
    loss: VarianceConfig = field(default_factory=VarianceConfig)

    def __post_init__(self) -> None:
        if self.views.global_count != 2:
            raise UserError(
                f"VICRegL compares two large views with each other and with all small ones, but "
                f"method.views asks for {self.views.global_count} large ones. Give "
                "--method.views.global-count 2."
            )

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.vicregl.method import VICRegL

        return VICRegL(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        # Cells are matched in two ways, whose terms are added.
        most = {"global": self.loss.variance, "local": 2 * self.loss.variance}
        for base in ("loss", "invariance", "variance", "covariance"):
            for part, what in {"global": "whole images", "local": "cells"}.items():
                judge = judge_missing_spread(most[part]) if base == "variance" else None
                yield from of_parts(base, {part: what}, judge)

    def summary(self) -> dict[str, str]:
        return {
            "views": self.views.shown(),
            "loss": f"{self.loss.alpha:g} images + {1 - self.loss.alpha:g} cells",
            "cell places": "mirrored with the image" if self.mirror_grid else "never mirrored",
        }
