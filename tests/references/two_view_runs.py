"""Small batches, a stand-in backbone and tiny runs for methods on two views of an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from references.interruptions import assert_same, crash_after, figures, final_state
from references.tiny_runs import tiny_config
from torch import Tensor, nn

from clove_ssl.config.methods.base import MethodConfig
from clove_ssl.engine import pretraining
from clove_ssl.registry import METHODS
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

IMAGES = 4


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


def check_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: MethodConfig, **changes: Any
) -> list[dict[str, float]]:
    """Crash a tiny run after two steps and resume it: its end equals an unbroken one's.

    Gives the metrics of all steps.
    """
    path = f"{type(method).__module__}:{type(method).__name__}"
    monkeypatch.setitem(METHODS._builtin, method.name, path)
    pretraining.pretrain(tiny_config(folder / "whole", method=method, **changes))
    crash_after(2, monkeypatch, tiny_config(folder / "torn", method=method, **changes))
    assert pretraining.resume(folder / "torn").finished
    assert_same(final_state(folder / "torn"), final_state(folder / "whole"))
    assert figures(folder / "torn") == figures(folder / "whole")
    return figures(folder / "whole")
