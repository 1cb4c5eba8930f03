"""The options of the dense twin; no torch, so that asking for help stays quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.ranges import Positive, Width
from clove_ssl.config.views import ViewsConfig, ViewSpec

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class DenseTwinConfig(MethodConfig):
    """Two views of an image, each of which predicts the cells of the other."""

    name: ClassVar[str] = "dense-twin"

    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(local_count=0))
    channels: Width = 128
    """Channels of an embedding."""
    threshold: Positive = 0.7
    """Cells match when their centres are closer than this many cell diagonals."""

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def build(self, backbone: Backbone) -> Method:
        from dense_twin.method import DenseTwin

        return DenseTwin(self, backbone)
