"""Every choice of MoCo v2 (Chen et al., 2020), with the released code's as defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import Kind
from clove_ssl.methods.config import QueuedConfig

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class MoCoConfig(QueuedConfig):
    """Momentum contrast, version 2 (Chen et al., 2020)."""

    name: ClassVar[str] = "moco"
    paper: ClassVar[str] = "Chen et al., 2020"
    kinds: ClassVar[tuple[Kind, ...]] = ("global",)
    status: ClassVar[str] = "equal to the released code"

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.moco.method import MoCo

        return MoCo(self, backbone)
