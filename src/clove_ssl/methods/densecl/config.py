"""Every choice of DenseCL (Wang et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import Share, StepsFromZero
from clove_ssl.methods.config import HeadConfig, QueuedConfig
from clove_ssl.methods.metrics import of_parts

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class DenseCLConfig(QueuedConfig):
    """Dense contrastive learning (Wang et al., 2021)."""

    name: ClassVar[str] = "densecl"
    paper: ClassVar[str] = "Wang et al., 2021"
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "dense")
    queues: ClassVar[int] = 2
    status: ClassVar[str] = "equal to the released code"

    dense_head: HeadConfig = field(default_factory=HeadConfig)
    dense_weight: Share = 0.5
    """Lambda: share of the loss between cells; the rest is the loss between images."""
    dense_from_step: StepsFromZero = 0
    """Optimizer step from which lambda is used; until then it is 0. The published recipes use
    none."""

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.densecl.method import DenseCL

        return DenseCL(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        yield from super().metrics(run)
        parts = {"global": "whole images", "dense": "cells"}
        yield from of_parts("loss", parts, self.judge_loss(run))
        for base in ("cos_positive", "cos_negative", "accuracy"):
            yield from of_parts(base, {"dense": "cells"})

    def summary(self) -> dict[str, str]:
        common = super().summary()
        return {**common, "loss": f"{common['loss']}, lambda {self.dense_weight}"}
