"""CP2: paste an image onto two others, and recognise it among the keys of earlier images.

Of both views only the rectangle with the image itself counts: its cells are
averaged into one embedding, which is contrasted with a queue; and each of its
cells in the key has to find the foreground among all cells of the query. The
network gives a dense map: a backbone, whose last stage is best dilated, a
pyramid of dilated convolutions and a head of two 1x1 convolutions.

Dimensions: B images, D channels, a map is h x w cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.contrastive import contrast
from clove_ssl.methods.cp2.config import CP2Config
from clove_ssl.methods.cp2.loss import align_foreground, pool_foreground
from clove_ssl.methods.heads import ConvHead
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.queued import QueuedMethod
from clove_ssl.methods.teacher_student import BackboneEncoder, contrast_metrics
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.pasting import foreground_mask


class Foreground(NamedTuple):
    """What is compared of one view."""

    cells: Tensor  # (B, D, h, w) unit vectors
    mask: Tensor  # (B, h, w) bool
    pooled: Tensor  # (B, D) unit vectors


class PyramidEncoder(BackboneEncoder):
    """Pixels to one embedding per cell."""

    def __init__(self, backbone: Backbone, config: CP2Config) -> None:
        super().__init__(backbone)
        width = config.pyramid.channels
        self.pyramid = AtrousPyramid(backbone.out_channels, width, config.pyramid.dilations)
        self.head = ConvHead(width, config.head.hidden, config.head.out)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D, h, w)."""
        embedded: Tensor = self.head(self.pyramid(self.backbone.features(images)))
        return embedded


class CP2(QueuedMethod[PyramidEncoder]):
    """Copy-paste contrastive pre-training (Wang et al., 2022)."""

    headline = ("accuracy", "cos_positive", "loss_dense")

    def __init__(self, config: CP2Config, backbone: Backbone) -> None:
        super().__init__(config, PyramidEncoder(backbone, config))
        self.config = config
        self.queue = KeyBank(config.queue_size, config.head.out)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        first, second = batch.views
        self.before_targets(progress)
        key = foreground_of(second, self.keys_of(second.pixels))
        embedded = self.encoder(first.pixels)  # (B, D, h, w)
        query = foreground_of(first, embedded)
        negatives, temperature = self.queue.entries, self.config.temperature
        images = contrast(query.pooled, key.pooled, negatives, temperature=temperature)
        between_images = images.loss.mean()
        between_cells = align_foreground(query.cells, key.cells, query.mask, key.mask).mean()
        if self.training:
            self.queue.collect(key.pooled)
        metrics = {
            **contrast_metrics(images),
            "loss_global": between_images.detach(),
            "loss_dense": between_cells.detach(),
            "foreground_cells": query.mask.float().mean(),
        }
        loss = between_images + self.config.dense_weight * between_cells
        return StepOutput(loss, metrics, {"embeddings": health.embedding_rows(embedded)})


def foreground_of(view: View, embedded: Tensor) -> Foreground:
    """The embedded cells (B, D, h, w) of a pasted view, and what they say of its own image."""
    if view.foreground is None:
        raise ValueError("CP2 got a view that was not pasted")
    cells = unit_vectors(embedded, dim=1)
    grid = (embedded.shape[2], embedded.shape[3])
    mask = foreground_mask(view.foreground, view.pixels.shape[-1], grid)  # (B, h, w)
    return Foreground(cells, mask, unit_vectors(pool_foreground(cells, mask)))


class AtrousPyramid(nn.Module):
    """Convolutions of different dilations and the image's mean, side by side, then mixed.

    Args:
        in_channels: Channels of the backbone's map.
        channels: Channels of every branch, and of the result.
        dilations: One branch each; 1 is a 1x1 convolution, others are 3x3.
    """

    def __init__(self, in_channels: int, channels: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.mean_branch = _normalized_conv(in_channels, channels, kernel=1)
        self.branches = nn.ModuleList(
            _normalized_conv(
                in_channels, channels, kernel=1 if dilation == 1 else 3, apart=dilation
            )
            for dilation in dilations
        )
        self.mix = _normalized_conv((1 + len(dilations)) * channels, channels, kernel=3)

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, D, h, w)."""
        mean = self.mean_branch(feature_map.mean((2, 3), keepdim=True))  # (B, D, 1, 1)
        seen = [branch(feature_map) for branch in self.branches]
        everywhere = mean.expand(-1, -1, *feature_map.shape[2:])
        mixed: Tensor = self.mix(torch.cat([everywhere, *seen], dim=1))
        return mixed


def _normalized_conv(in_channels: int, out: int, *, kernel: int, apart: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of a map, batch norm and ReLU."""
    padding = apart * (kernel // 2)
    conv = nn.Conv2d(in_channels, out, kernel, padding=padding, dilation=apart, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())
