"""Batches of views that were pasted onto other images."""

from __future__ import annotations

import torch
from builders.batches.vector_batches import batch_of_maps
from torch import Tensor

from clove_ssl.views.batch import View, ViewBatch


def pasted_batch(*views: tuple[Tensor, Tensor]) -> ViewBatch:
    """Views of the given pixels (B, C, s, s) and foreground boxes (B, 4)."""
    plain = batch_of_maps(*(pixels for pixels, _ in views))
    with_boxes = tuple(
        View(view.pixels, view.geometry, view.role, boxes)
        for view, (_, boxes) in zip(plain.views, views, strict=True)
    )
    return ViewBatch(with_boxes, plain.index)


def random_boxes(images: int, size: int, generator: torch.Generator) -> Tensor:
    """Rectangles of at least half of a view's side, (B, 4)."""
    extent = (size * (0.5 + 0.4 * torch.rand(images, 2, generator=generator))).round()
    corner = (torch.rand(images, 2, generator=generator) * (size - extent + 1)).floor()
    return torch.cat([corner, corner + extent], dim=1)
