"""Small configs of the methods on pooled views, of whole images or of regions of mosaics."""

from __future__ import annotations

from typing import Any

from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.config import HeadConfig, PooledViewsConfig, TeacherConfig
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.inscon.config import InsConConfig, MosaicConfig
from clove_ssl.methods.moco.config import MoCoConfig

NAMES = ("byol", "moco", "densecl", "inscon")


def small_method(name: str, *, size: int = 64, **changes: Any) -> PooledViewsConfig:
    """A method with few channels and a queue that wraps soon."""
    common = {
        "views": ViewsConfig(global_size=size, local_count=0),
        "teacher": TeacherConfig(momentum=0.9, final_momentum=0.9),
    }
    head = HeadConfig(hidden=12, out=8)
    if name == "byol":
        return BYOLConfig(**{**common, "projector": head, "predictor_hidden": 12, **changes})
    queued = {**common, "head": head, "queue_size": 20, "shuffle_groups": 2}
    if name == "moco":
        return MoCoConfig(**{**queued, **changes})
    dense = {**queued, "dense_head": HeadConfig(hidden=12, out=6)}
    if name == "inscon":
        # Two photos of three cells across, downscaled by a number that is not whole.
        mosaic = MosaicConfig(rows=1, columns=2, tile=3 * size // 4)
        return InsConConfig(**{**dense, "mosaic": mosaic, **changes})
    return DenseCLConfig(**{**dense, **changes})
