"""Small batches for methods on views of an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from builders.batches.pasted_views import random_boxes
from torch import Tensor

from clove_ssl.config.bases import MethodConfig
from clove_ssl.methods.supervised.config import SupervisedConfig
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry

IMAGES = 4


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


def two_views(
    config: MethodConfig, seed: int = 0, *, apart: bool = False, images: int = IMAGES
) -> ViewBatch:
    """Random crops that overlap, or (``apart``) lie where nothing matches; two or more.

    Pasted views have a foreground, and methods that need classes get some.
    """
    g = torch.Generator().manual_seed(seed)
    views = []
    for number, spec in enumerate(config.view_specs()):
        corner = torch.rand(images, 2, generator=g, dtype=torch.float64) * 20
        extent = torch.rand(images, 2, generator=g, dtype=torch.float64) * 20 + 30
        flipped = torch.rand(images, generator=g) < 0.5
        geometry = crops_of(corner + 1000 * apart * number, extent, flipped)
        pixels = torch.randn(images, 3, spec.size, spec.size, generator=g, dtype=torch.float64)
        pasted = None if spec.paste is None else random_boxes(images, spec.size, g)
        views.append(View(pixels, geometry, spec.role, pasted))
    index = torch.arange(images)
    labels = index % (config.classes or 1) if isinstance(config, SupervisedConfig) else None
    return ViewBatch(tuple(views), index, labels)


def share_of(batch: ViewBatch, rank: int, processes: int) -> ViewBatch:
    """The images of one process."""
    images = len(batch.index)
    rows = slice(rank * images // processes, (rank + 1) * images // processes)

    def cut(view: View) -> View:
        geometry = {name: value[rows] for name, value in vars(view.geometry).items()}
        pasted = None if view.foreground is None else view.foreground[rows]
        return View(view.pixels[rows], CropGeometry(**geometry), view.role, pasted)

    labels = None if batch.labels is None else batch.labels[rows]
    return ViewBatch(tuple(map(cut, batch.views)), batch.index[rows], labels)
