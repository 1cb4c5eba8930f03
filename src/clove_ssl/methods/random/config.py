"""No training at all: the baseline that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.views import ViewSpec

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class RandomConfig(MethodConfig):
    """Random weights without training, the baseline without labels."""

    name: ClassVar[str] = "random"
    status: ClassVar[str] = "baseline"
    trains: ClassVar[bool] = False

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return ()

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.random.method import Random

        return Random(backbone)
