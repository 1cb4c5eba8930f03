"""Random weights: a backbone as it was initialised, in the form of a finished run."""

from __future__ import annotations

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.views import ViewSpec
from clove_ssl.methods.base import Method


class Random(Method):
    """Looks at nothing and trains nothing; its run has no steps."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def views(self) -> tuple[ViewSpec, ...]:
        """None."""
        return ()
