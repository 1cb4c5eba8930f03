"""Small configs of ReSim and SetSim."""

from __future__ import annotations

from typing import Any

import torch
from builders.tasks.tiny_backbone import TinyBackbone
from builders.tasks.tiny_pyramid import TinyPyramid

from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.config import HeadConfig, QueuedConfig, TeacherConfig
from clove_ssl.methods.resim.config import ReSimConfig, WindowConfig
from clove_ssl.methods.setsim.config import SetsConfig, SetSimConfig

NAMES = ("resim", "setsim")
SIZE = {"resim": 64, "setsim": 16}


def small_method(name: str, *, size: int | None = None, **changes: Any) -> QueuedConfig:
    """A method with few channels and a queue that wraps soon."""
    common = {
        "views": ViewsConfig(global_size=size or SIZE[name], local_count=0),
        "teacher": TeacherConfig(momentum=0.9, final_momentum=0.9),
        "head": HeadConfig(hidden=12, out=8),
        "queue_size": 10,
        "shuffle_groups": 2,
    }
    if name == "resim":
        windows = {
            "c4": WindowConfig(window=24, stride=12),
            "c3": WindowConfig(window=16, stride=12, negative_images=2),
        }
        return ReSimConfig(**{**common, **windows, "pyramid_channels": 7, **changes})
    sets = {"dense_head": HeadConfig(hidden=12, out=6), "sets": SetsConfig(attention=0.5)}
    return SetSimConfig(**{**common, **sets, **changes})


def built(config: QueuedConfig) -> Any:
    """The method in float64, with a teacher unlike its student, so that mistaking them shows."""
    torch.manual_seed(0)
    backbone = TinyPyramid() if config.name == "resim" else TinyBackbone()
    method: Any = config.build(backbone).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in method.teacher.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method
