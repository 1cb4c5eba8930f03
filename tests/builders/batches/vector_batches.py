"""Batches and a backbone for methods that are fed with recorded features instead of photos."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry


class Passed(nn.Module):
    """Stands in for a backbone whose features are the pixels themselves."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels

    def features(self, images: Tensor) -> Tensor:
        return images


def batch_of_maps(*maps: Tensor) -> ViewBatch:
    """Views whose "pixels" are (B, C, h, w) maps or (B, C) vectors; geometry plays no part."""
    images = len(maps[0])
    nowhere = CropGeometry(
        boxes=torch.tensor([[0.0, 0.0, 10.0, 10.0]]).expand(images, 4),
        flipped=torch.zeros(images, dtype=torch.bool),
        flipped_vertically=torch.zeros(images, dtype=torch.bool),
        image_size=torch.full((images, 2), 10),
    )
    pixels = [each if each.ndim == 4 else each[:, :, None, None] for each in maps]
    return ViewBatch(tuple(View(each, nowhere, "global") for each in pixels), torch.arange(images))


def fitting_groups(images: int) -> int:
    """The fewest groups of at least two images each, 0 where the images have no such groups.

    Recorded encoders have no batch norm, so any number of groups must give the recorded values.
    """
    return next((groups for groups in range(2, images // 2 + 1) if images % groups == 0), 0)
