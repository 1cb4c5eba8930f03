"""Every choice of PixPro (Xie et al., 2021), with those of the released scripts as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.bases import Branch, Kind
from clove_ssl.config.ranges import Positive, Ranged, Weight, Width
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.methods.config import (
    MatchingConfig,
    ProjectorConfig,
    TeacherConfig,
    TeacherStudentConfig,
    check_two_views,
    wide_crops,
)
from clove_ssl.methods.metrics import matches_of_two_views, of_parts, positive_cosine

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class PropagationConfig(Ranged):
    """Pixel propagation: every cell averages the cells of its view that are similar to it."""

    power: Positive = 2.0
    """Sharpness: positive cosines are raised to this power before they are used as weights."""
    transform: Literal["linear", "none"] = "linear"
    """What is propagated: cells after a 1x1 convolution, or the cells themselves."""


@dataclass(frozen=True, kw_only=True)
class InstanceConfig(Ranged):
    """An optional second branch that compares whole images, as BYOL does."""

    weight: Weight = 0.0
    """Weight of the branch relative to the loss on cells; 0 leaves the branch out, 1 was
    published."""
    hidden: Width = 4096
    """Channels inside the branch's projector and predictor."""
    out: Width = 256
    """Channels of an image's embedding."""


@dataclass(frozen=True, kw_only=True)
class PixProConfig(TeacherStudentConfig):
    """Pixel-to-propagation consistency (Xie et al., 2021)."""

    name: ClassVar[str] = "pixpro"
    paper: ClassVar[str] = "Xie et al., 2021"
    kinds: ClassVar[tuple[Kind, ...]] = ("dense",)
    status: ClassVar[str] = "equal to the released code"

    views: ViewsConfig = field(default_factory=lambda: wide_crops("bilinear"))
    projector: ProjectorConfig = field(
        default_factory=lambda: ProjectorConfig(bias=True, last_norm="none")
    )
    propagation: PropagationConfig = field(default_factory=PropagationConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    instance: InstanceConfig = field(default_factory=InstanceConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    unmatched_images: Literal["keep", "skip"] = "keep"
    """``keep``: an image without a match counts as 0 in the mean over images, as released;
    ``skip`` leaves it out of the mean."""
    export: Branch = "student"
    """The branch whose backbone is exported."""

    def __post_init__(self) -> None:
        check_two_views(self.views, "PixPro")

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.pixpro.method import PixPro

        return PixPro(self, backbone)

    @property
    def matching_rule(self) -> MatchingConfig:
        return self.matching

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        instances = of_parts("cos", {"instance": "whole images"})
        matches = (positive_cosine("cells"), *instances, *matches_of_two_views())
        return (*matches, *super().metrics(run))

    def summary(self) -> dict[str, str]:
        weight = self.instance.weight
        return {
            "views": self.views.shown(),
            "propagation": f"power {self.propagation.power:g}, transform "
            f"{self.propagation.transform}",
            "instances": f"weight {weight:g}" if weight else "no branch for them",
        }
