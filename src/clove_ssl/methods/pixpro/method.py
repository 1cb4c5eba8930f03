"""PixPro: cells of one view, smoothed over their likes, predict the matching cells of the other.

The student is an encoder (backbone and projector) and a pixel propagation; the
teacher is a slow copy of the encoder. An optional instance branch does the same
for whole images, with projector and predictor of its own (BYOL).

Dimensions: B images, D channels, h x w cells.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.cells import CellLoss, attract_cells
from clove_ssl.methods.config import ProjectorConfig
from clove_ssl.methods.heads import ConvProjector
from clove_ssl.methods.pixpro.config import InstanceConfig, PixProConfig
from clove_ssl.methods.pixpro.propagation import PixelPropagation
from clove_ssl.methods.teacher_student import BackboneEncoder, TeacherStudentMethod
from clove_ssl.methods.two_views import match_both_ways, swap_views
from clove_ssl.views.batch import ViewBatch


class Embeddings(NamedTuple):
    """What an encoder makes of images."""

    cells: Tensor  # (B, D, h, w)
    instance: Tensor | None  # (B, D', h, w), not pooled yet: the predictor works on cells


class Encoder(BackboneEncoder):
    """What student and teacher have in common."""

    def __init__(
        self, backbone: Backbone, projector: nn.Module, instance_projector: nn.Module | None
    ) -> None:
        super().__init__(backbone)
        self.projector = projector
        self.instance_projector = instance_projector

    def forward(self, images: Tensor) -> Embeddings:
        """Project the last map of (B, 3, H, W) images."""
        maps = self.backbone.features(images)
        if self.instance_projector is None:
            return Embeddings(self.projector(maps), None)
        return Embeddings(self.projector(maps), self.instance_projector(maps))


class PixPro(TeacherStudentMethod[Encoder]):
    """Propagate yourself (Xie et al., 2021)."""

    def __init__(self, config: PixProConfig, backbone: Backbone) -> None:
        channels, instance = backbone.out_channels, config.instance
        has_instance = instance.weight > 0
        encoder = Encoder(
            backbone,
            build_projector(channels, config.projector),
            instance_head(channels, instance) if has_instance else None,
        )
        super().__init__(config, encoder)
        self.config = config
        self.propagation = PixelPropagation(
            config.projector.out,
            power=config.propagation.power,
            transform=config.propagation.transform,
        )
        self.predictor = instance_head(instance.out, instance) if has_instance else None
        self.headline = ("cos_positive", "cos_instance") if has_instance else ("cos_positive",)

    @property
    def joins_views(self) -> bool:
        """No, as published."""
        return False

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """The propagation, and the predictor of the instance branch."""
        predictors = () if self.predictor is None else (self.predictor,)
        return self.propagation, *predictors

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        self.before_targets(progress)
        with torch.no_grad():
            target = self._embed(self.teacher.module, batch)
        student = self._embed(self.encoder, batch)
        cells = self._compare_cells(student.cells, target.cells, batch)
        skips = self.config.unmatched_images == "skip"
        loss, metrics = cells.term_losses(2, skips=skips).sum(), health.match_metrics([cells])
        if student.instance is not None and target.instance is not None:
            cosine = self._compare_images(student.instance, target.instance)  # (2 * B,)
            # Both directions are summed, as for cells: two means of -2 cos.
            loss = loss - self.config.instance.weight * 4 * cosine.mean()
            metrics["cos_instance"] = cosine.detach().mean()
        return StepOutput(loss, metrics, {"embeddings": health.embedding_rows(student.cells)})

    def _embed(self, encoder: Encoder, batch: ViewBatch) -> Embeddings:
        """Embeddings of both views, (2 * B, ...), each normalised by its own batch statistics."""
        parts: list[Embeddings] = [encoder(images) for images in self.passes(batch.views)]
        instances = [part.instance for part in parts if part.instance is not None]
        cells = torch.cat([part.cells for part in parts])
        return Embeddings(cells, torch.cat(instances) if instances else None)

    def _compare_cells(self, student: Tensor, target: Tensor, batch: ViewBatch) -> CellLoss:
        guess = unit_vectors(self.propagation(student), dim=1)  # (2 * B, D, h, w)
        matches = match_both_ways(batch, (guess.shape[2], guess.shape[3]), self.config.matching)
        opposite = swap_views(unit_vectors(target, dim=1))
        return attract_cells(
            guess, opposite, matches, unmatched_images=self.config.unmatched_images
        )

    def _compare_images(self, student: Tensor, target: Tensor) -> Tensor:
        """Cosine of every image's prediction and the other view's target: (2 * B,)."""
        assert self.predictor is not None  # comes with the instance projector
        # One view at a time, as everywhere: the predictor has batch statistics too.
        guess = torch.cat([self.predictor(maps).mean((2, 3)) for maps in student.chunk(2)])
        opposite = swap_views(unit_vectors(target.mean((2, 3))))
        return (unit_vectors(guess) * opposite).sum(-1)


def build_projector(channels: int, config: ProjectorConfig) -> ConvProjector:
    """The projector a config asks for."""
    return ConvProjector(
        channels, config.hidden, config.out, bias=config.bias, last_norm=config.last_norm
    )


def instance_head(channels: int, config: InstanceConfig) -> ConvProjector:
    """Projector or predictor of the instance branch."""
    return ConvProjector(channels, config.hidden, config.out, bias=True, last_norm="none")
