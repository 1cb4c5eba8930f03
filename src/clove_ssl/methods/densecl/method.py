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
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.config import HeadConfig
from clove_ssl.methods.contrastive import contrast, most_similar_cells
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.heads import ConvHead, MLPHead
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.queued import QueuedMethod
from clove_ssl.methods.teacher_student import BackboneEncoder, contrast_metrics
from clove_ssl.views.batch import ViewBatch


class Embedded(NamedTuple):
    """One view in front of and behind both heads, not yet of unit length."""

    feature_map: Tensor  # (B, C, h, w)
    image: Tensor  # (B, D)
    cells: Tensor  # (B, L, D)


class DenseTerm(NamedTuple):
    """The loss between cells, and what explains it."""

    loss: Tensor  # scalar
    metrics: dict[str, Tensor]


class DenseEncoder(BackboneEncoder):
    """A backbone with a head for images and one for cells.

    Only the backbone has batch norm, so only its pass is shuffled.
    """

    def __init__(self, backbone: Backbone, images: HeadConfig, cells: HeadConfig) -> None:
        super().__init__(backbone)
        channels = backbone.out_channels
        self.image_head = MLPHead(channels, images.hidden, images.out)
        self.cell_head = ConvHead(channels, cells.hidden, cells.out)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, h, w), the backbone's map."""
        return self.backbone.features(images)

    def embeddings(self, images: Tensor) -> Embedded:
        """(B, 3, H, W) -> what both heads make of them."""
        return self.embed(self(images))

    def embed(self, feature_map: Tensor) -> Embedded:
        """Both heads on the backbone's map (B, C, h, w)."""
        image = self.image_head(feature_map.mean((2, 3)))
        return Embedded(feature_map, image, self.cell_head(feature_map).flatten(2).mT)


class DenseCL(QueuedMethod[DenseEncoder]):
    """Dense contrastive learning (Wang et al., 2021)."""

    headline = ("accuracy", "cos_positive", "cos_positive_dense")

    def __init__(self, config: DenseCLConfig, backbone: Backbone) -> None:
        super().__init__(config, DenseEncoder(backbone, config.head, config.dense_head))
        self.config = config
        self.queue = KeyBank(config.queue_size, config.head.out)
        self.dense_queue = KeyBank(config.queue_size, config.dense_head.out)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        first, second = batch.views
        self.before_targets(progress)
        key = self._key(second.pixels)
        query = self.encoder.embeddings(first.pixels)
        images = self.contrast_with_queue(
            query.image, key.image, self.queue, temperature=self.config.temperature
        )
        cells = self.compare_cells(query, key, batch)
        if self.training:
            self.dense_queue.collect(unit_vectors(key.cells.mean(1)))
        share, between_images = self.dense_weight(progress), images.loss.mean()
        metrics = {
            **cells.metrics,
            **contrast_metrics(images),
            "loss_global": between_images.detach(),
            "loss_dense": cells.loss.detach(),
        }
        loss = (1 - share) * between_images + share * cells.loss
        return StepOutput(loss, metrics, {"embeddings": query.image.detach()})

    def compare_cells(self, query: Embedded, key: Embedded, batch: ViewBatch) -> DenseTerm:
        """Contrast every cell with the one that is most like it; other methods compare others."""
        matched = most_similar_cells(query.feature_map, key.feature_map)  # (B, L)
        partners = key.cells.take_along_dim(matched[:, :, None], dim=1)  # (B, L, D)
        result = contrast(
            unit_vectors(query.cells),
            unit_vectors(partners),
            self.dense_queue.entries,
            temperature=self.config.temperature,
        )
        metrics = {f"{name}_dense": value for name, value in contrast_metrics(result).items()}
        return DenseTerm(result.loss.mean(), metrics)

    def step_kind(self, progress: Progress) -> float:
        """The weight of the dense loss, which is 0 at first where the config says so."""
        return self.dense_weight(progress)

    def dense_weight(self, progress: Progress) -> float:
        """Lambda at a step."""
        started = progress.step >= self.config.dense_from_step
        return self.config.dense_weight if started else 0.0

    @torch.no_grad()
    def _key(self, images: Tensor) -> Embedded:
        return self.teacher.module.embed(self.keys_of(images))
