"""Small batches, a stand-in backbone and tiny runs for methods on two views of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references.tiny_runs import tiny_config
from torch import Tensor, nn

from clove_ssl.config.methods.base import MethodConfig
from clove_ssl.engine import pretraining
from clove_ssl.engine.checkpoints import CheckpointStore
from clove_ssl.engine.loop import TrainingLoop
from clove_ssl.registry import METHODS
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

IMAGES = 4
TIMING = ("images_per_second", "data_wait")


class TinyBackbone(nn.Module):
    """Stands in for a backbone: stride 4, 6 channels."""

    out_channels = 6

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 4, stride=4)
        self.norm = nn.BatchNorm2d(6)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(images)))


class NoBackbone(nn.Module):
    """Takes recorded feature maps for images."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels

    def features(self, maps: Tensor) -> Tensor:
        return maps


@dataclass(frozen=True)
class RecordedGeometry:
    """Boxes as recorded, already normalised and signed."""

    boxes: Tensor

    def signed_boxes(self, coordinates: str) -> Tensor:
        return self.boxes


def crops_of(corner: Tensor, extent: Tensor, flipped: Tensor) -> CropGeometry:
    """Crops of 100 x 80 pixel images."""
    return CropGeometry(
        boxes=torch.cat([corner, corner + extent], dim=1),
        flipped=flipped,
        flipped_vertically=torch.zeros(len(corner), dtype=torch.bool),
        image_size=torch.tensor([[80, 100]]).expand(len(corner), 2),
    )


def two_views(config: MethodConfig, seed: int = 0, *, apart: bool = False) -> ViewBatch:
    """Random crops that overlap, or (``apart``) lie where nothing matches."""
    g = torch.Generator().manual_seed(seed)
    views = []
    for number, spec in enumerate(config.view_specs()):
        corner = torch.rand(IMAGES, 2, generator=g, dtype=torch.float64) * 20
        extent = torch.rand(IMAGES, 2, generator=g, dtype=torch.float64) * 20 + 30
        flipped = torch.rand(IMAGES, generator=g) < 0.5
        geometry = crops_of(corner + 1000 * apart * number, extent, flipped)
        pixels = torch.randn(IMAGES, 3, spec.size, spec.size, generator=g, dtype=torch.float64)
        views.append(View(pixels, geometry, spec.role))
    return ViewBatch(tuple(views), torch.arange(IMAGES))


class Crash(Exception):
    """Stands for anything that ends a process."""


def check_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: MethodConfig, **changes: Any
) -> list[dict[str, float]]:
    """Crash a tiny run after two steps and resume it: its end equals an unbroken one's.

    Gives the metrics of all steps.
    """
    path = f"{type(method).__module__}:{type(method).__name__}"
    monkeypatch.setitem(METHODS._builtin, method.name, path)
    pretraining.pretrain(tiny_config(folder / "whole", method=method, **changes))
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_train_step", _dying(TrainingLoop._train_step))
        with pytest.raises(Crash):
            pretraining.pretrain(tiny_config(folder / "torn", method=method, **changes))
    assert pretraining.resume(folder / "torn").finished
    torn, whole = (_final_weights(folder / name) for name in ("torn", "whole"))
    assert torn.keys() == whole.keys()
    assert all(torch.equal(torn[key], whole[key]) for key in whole)
    assert _figures(folder / "torn") == _figures(folder / "whole")
    return _figures(folder / "whole")


def _dying(train_step: Callable[..., bool]) -> Callable[..., bool]:
    def step(loop: TrainingLoop, *args: Any) -> bool:
        if loop.step == 2:
            raise Crash
        return train_step(loop, *args)

    return step


def _final_weights(run: Path) -> dict[str, Tensor]:
    store = CheckpointStore(RunDirectory(run).checkpoints, keep=2, warn=print)
    state = store.load_latest()
    assert state is not None
    weights: dict[str, Tensor] = state["learner"]
    return weights


def _figures(run: Path) -> list[dict[str, float]]:
    lines = read_metrics(RunDirectory(run))
    return [{k: v for k, v in line.items() if k not in TIMING} for line in lines]
