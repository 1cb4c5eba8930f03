"""What the figures of a run are compared with; docs/health.md explains the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clove_ssl.config.bases import MethodConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.clove.config import CLoVEConfig, LossConfig
from clove_ssl.methods.clove_plus.config import CLoVEPlusConfig
from clove_ssl.methods.config import QueuedConfig

EXPECTED_POSITIVES = {0.5: (64.0, 23.0), 0.7: (122.0, 44.0), 0.9: (200.0, 70.0)}
"""Matches per image by threshold: large with large view, small with large view. Simulated with
the default views and photos of 500 x 375 pixels."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where a figure stops being healthy."""

    min_std: float = 0.2
    min_rank: float = 4.0
    max_data_wait: float = 0.1
    margin: float | None = None
    """The constant part of the loss, where it is one: a margin that the hinge never closes."""
    reach: float = 6.0
    """How far cosines can move the loss from that margin."""
    warmup_epochs: float = 0.0
    compared: str = "cells"
    """What the main figures of similarity speak of."""
    queue_steps: float = 0.0
    """Steps that fill a queue of negatives, while the loss rises; 0 without a queue."""
    expected_positives: Mapping[str, float] = field(default_factory=dict)
    """Matches per image of 4:3 photos, by the name of the figure; empty without a reference."""


def limits_of(config: PretrainConfig) -> Limits:
    """The limits that a run's own config implies."""
    method = config.method
    loss = method.loss if isinstance(method, CLoVEConfig) else None
    reach = _reach(loss) if loss else 0.0
    queue_size = method.queue_size if isinstance(method, QueuedConfig) else 0
    # CLoVE Plus adds another loss, which no margin holds in place.
    alone = not isinstance(method, CLoVEPlusConfig)
    is_constant = loss is not None and loss.kind == "ranking" and loss.margin >= reach and alone
    return Limits(
        min_std=config.health.min_std,
        min_rank=config.health.min_rank,
        margin=loss.margin if loss and is_constant else None,
        reach=reach,
        warmup_epochs=config.optimizer.warmup_epochs,
        compared="cells" if loss else _compared(method),
        queue_steps=queue_size / config.batch_size,
        expected_positives=_expected_positives(config),
    )


def _compared(method: MethodConfig) -> str:
    return "images" if "global" in method.kinds or method.queues else "cells"


def _reach(loss: LossConfig) -> float:
    """Largest distance of ``loss`` from its margin, with all cosines at their extremes."""
    factor = 2.0 if loss.form == "release" else 1.0
    return factor * (loss.positive_weight + 1)


def _expected_positives(config: PretrainConfig) -> dict[str, float]:
    """References exist for the default crops with 7 x 7 and 3 x 3 cells only."""
    method, defaults = config.method, ViewsConfig()
    if not isinstance(method, CLoVEConfig) or method.matching.threshold not in EXPECTED_POSITIVES:
        return {}
    geometry = ("global_size", "global_scale", "local_size", "local_scale", "ratio")
    same_views = all(getattr(method.views, key) == getattr(defaults, key) for key in geometry)
    same_grid = config.backbone.stage in ("last", "c5") and config.backbone.output_stride == 32
    if not (same_views and same_grid and method.matching.unit == "larger"):
        return {}
    large, small = EXPECTED_POSITIVES[method.matching.threshold]
    return {"positives_per_image_global": large, "positives_per_image_local": small}
