"""Small configs, networks and batches of CP2 and DetCo."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from builders.batches.pasted_views import pasted_batch, random_boxes
from builders.batches.vector_batches import batch_of_maps
from builders.tasks.tiny_backbone import TinyBackbone
from torch import Tensor, nn

from clove_ssl.backbones.build import STAGES
from clove_ssl.config.views import ViewsConfig
from clove_ssl.methods.base import Method
from clove_ssl.methods.config import HeadConfig, QueuedConfig, TeacherConfig
from clove_ssl.methods.cp2.config import CP2Config, PyramidConfig
from clove_ssl.methods.detco.config import DetCoConfig, JigsawConfig
from clove_ssl.views.batch import ViewBatch

NAMES = ("cp2", "detco")
SIZE = 16  # of the views of random batches
PATCHES = 4


def small_method(name: str, *, size: int = 64, **changes: Any) -> QueuedConfig:
    """A method with few channels and a queue that wraps soon."""
    common: dict[str, Any] = {
        "views": ViewsConfig(global_size=size, local_count=0),
        "teacher": TeacherConfig(momentum=0.9, final_momentum=0.9),
        "head": HeadConfig(hidden=12, out=8),
        "queue_size": 20,
        "shuffle_groups": 2,
    }
    if name == "cp2":
        return CP2Config(
            **{**common, "pyramid": PyramidConfig(channels=6, dilations=(1, 2))} | changes
        )
    jigsaw = JigsawConfig(grid=2, frame=2 * size // 2, patch=size // 2)
    return DetCoConfig(**{**common, "jigsaw": jigsaw, "local_hidden": 10} | changes)


class TinyStages(nn.Module):
    """Stages c2 to c5 with few channels, each half the size of the one before."""

    stage = STAGES[-1]

    def __init__(self) -> None:
        super().__init__()
        self.channels = dict(zip(STAGES, (3, 4, 5, 6), strict=True))
        widths = (3, *self.channels.values())
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in self.channels.values())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps, running = {}, images
        for stage, conv, norm in zip(STAGES, self.convs, self.norms, strict=True):
            running = maps[stage] = F.relu(norm(conv(running)))
        return maps


def build(config: QueuedConfig) -> Method:
    """The method in float64 on a tiny network."""
    backbone = TinyBackbone() if config.name == "cp2" else TinyStages()
    return config.build(backbone).double()  # type: ignore[arg-type]


def batch(name: str, seed: int = 0, *, images: int = 8, rows: slice = slice(None)) -> ViewBatch:
    """Random views of ``images`` images, of which a process takes ``rows``."""
    g = torch.Generator().manual_seed(seed)
    whole = torch.randn(2, images, 3, SIZE, SIZE, generator=g, dtype=torch.float64)
    if name == "cp2":
        pairs = [(view[rows], random_boxes(images, SIZE, g)[rows]) for view in whole]
        return pasted_batch(*pairs)
    side = SIZE // 2
    patches = torch.randn(2 * PATCHES, images, 3, side, side, generator=g, dtype=torch.float64)
    return batch_of_maps(*(view[rows] for view in (*whole, *patches)))
