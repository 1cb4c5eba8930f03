"""Every choice of BYOL (Grill et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import Width
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.config import HeadConfig, PooledViewsConfig, wide_crops

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.methods.base import Method


def _wide_head() -> HeadConfig:
    return HeadConfig(hidden=4096, out=256)


@dataclass(frozen=True, kw_only=True)
class BYOLConfig(PooledViewsConfig):
    """Bootstrap your own latent (Grill et al., 2020)."""

    name: ClassVar[str] = "byol"
    paper: ClassVar[str] = "Grill et al., 2020"
    kinds: ClassVar[tuple[Kind, ...]] = ("global",)
    status: ClassVar[str] = "equal to third-party code"

    views: ViewsConfig = field(default_factory=lambda: wide_crops("bicubic"))
    projector: HeadConfig = field(default_factory=_wide_head)
    predictor_hidden: Width = 4096
    """Width between the two layers of the predictor."""
    form: Literal["paper", "release"] = "paper"
    """``paper``: the sum of both directions; ``release``: their mean, which is half of it, as in
    yaox12/BYOL-PyTorch."""
    joint_views: bool = True
    """Both views share a forward pass and so their batch statistics; otherwise each is
    normalised on its own."""

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.byol.method import BYOL

        return BYOL(self, backbone)

    def summary(self) -> dict[str, str]:
        kind = "sum" if self.form == "paper" else "mean"
        return {**super().summary(), "loss": f"{kind} of both directions"}
