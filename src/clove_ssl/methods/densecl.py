"""DenseCL: contrast whole images, and cells with the cells most like them.

Both losses have a queue of their own. Cells of two views belong together when
their *backbone* features are most alike; where the crops lie plays no part.
Negatives of a cell are earlier images, each one averaged dense embedding.

Dimensions: B images, C channels of the backbone, D of an embedding, L = h * w cells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.methods.densecl import DenseCLConfig
from clove_ssl.losses.contrastive import Contrast, contrast, most_similar_cells
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.teaching import BackboneEncoder, TaughtMethod, contrast_figures
from clove_ssl.methods.two_views import view_pair
from clove_ssl.modules.heads import ConvHead, MLPHead
from clove_ssl.modules.key_bank import KeyBank
from clove_ssl.modules.normalization import unit_vectors
from clove_ssl.modules.shuffling import forward_shuffled
from clove_ssl.views.batch import ViewBatch


class Embedded(NamedTuple):
    """One view after both heads, not yet of unit length."""

    image: Tensor  # (B, D)
    cells: Tensor  # (B, L, D)


class DenseEncoder(BackboneEncoder):
    """A backbone with a head for images and one for cells.

    Only the backbone has batch norm, so only its pass is shuffled.
    """

    def __init__(self, backbone: Backbone, config: DenseCLConfig) -> None:
        super().__init__(backbone)
        channels = backbone.out_channels
        self.image_head = MLPHead(channels, config.head.hidden, config.head.out)
        self.cell_head = ConvHead(channels, config.dense_head.hidden, config.dense_head.out)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, h, w), the backbone's map."""
        return self.backbone.features(images)

    def embed(self, feature_map: Tensor) -> Embedded:
        """Both heads on the backbone's map (B, C, h, w)."""
        image = self.image_head(feature_map.mean((2, 3)))
        return Embedded(image, self.cell_head(feature_map).flatten(2).mT)


class DenseCL(TaughtMethod[DenseEncoder]):
    """Dense contrastive learning (Wang et al., 2021)."""

    headline = ("accuracy", "cos_positive", "cos_positive_dense")

    def __init__(self, config: DenseCLConfig, backbone: Backbone) -> None:
        super().__init__(config, DenseEncoder(backbone, config))
        self.config = config
        self.queue = KeyBank(config.queue_size, config.head.out)
        self.dense_queue = KeyBank(config.queue_size, config.dense_head.out)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        first, second = view_pair(batch)
        query_map = self.encoder(first.pixels)  # (B, C, h, w)
        query = self.encoder.embed(query_map)
        self.before_targets(progress)
        key_map = self._key_map(second.pixels, progress)  # (B, C, h, w)
        with torch.no_grad():
            key = self.teacher.module.embed(key_map)
        images = self._contrast(query.image, key.image, self.queue)
        matched = most_similar_cells(query_map, key_map)  # (B, L)
        partners = key.cells.take_along_dim(matched[:, :, None], dim=1)  # (B, L, D)
        cells = self._contrast(query.cells, partners, self.dense_queue)
        if self.training:
            self.queue.collect(unit_vectors(key.image))
            self.dense_queue.collect(unit_vectors(key.cells.mean(1)))
        return self._output(images, cells, query, progress)

    def after_step(self, progress: Progress) -> None:
        """Let the teacher and the queues move on."""
        super().after_step(progress)
        self.queue.advance()
        self.dense_queue.advance()

    def dense_weight(self, progress: Progress) -> float:
        """Lambda at a step."""
        started = progress.step >= self.config.dense_from_step
        return self.config.dense_weight if started else 0.0

    def _key_map(self, images: Tensor, progress: Progress) -> Tensor:
        groups = self.config.shuffle_groups if self.training else 0
        return forward_shuffled(self.teacher, images, step=progress.step, groups=groups)

    def _contrast(self, query: Tensor, positive: Tensor, queue: KeyBank) -> Contrast:
        query, positive = unit_vectors(query), unit_vectors(positive)
        return contrast(query, positive, queue.entries, temperature=self.config.temperature)

    def _output(
        self, images: Contrast, cells: Contrast, query: Embedded, progress: Progress
    ) -> StepOutput:
        share = self.dense_weight(progress)
        between_images, between_cells = images.loss.mean(), cells.loss.mean()
        dense = {f"{name}_dense": value for name, value in contrast_figures(cells).items()}
        metrics = {
            **contrast_figures(images),
            **dense,
            "loss_global": between_images.detach(),
            "loss_dense": between_cells.detach(),
        }
        loss = (1 - share) * between_images + share * between_cells
        return StepOutput(loss, metrics, {"embeddings": query.image.detach()})
