"""CLoVE: predict the local embeddings of one view from contextualized ones of another.

The student is an encoder (backbone and projector) and an attention that mixes
the cells of a view; the teacher is a slow copy of the encoder and sees only
the large views. Every large view is compared with the teacher's other large
views, every small one with all of them: 2 + 12 terms for 2 large and 6 small
views (``methods/clove/cell_terms.py``).

Dimensions: B images, V views of one role, D channels, h x w cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.clove.cell_terms import (
    DRAWS_CELLS,
    CellTerms,
    Comparison,
    build_projector,
    mean_of_terms,
    views_by_role,
)
from clove_ssl.methods.clove.config import CLoVEConfig
from clove_ssl.methods.teacher_student import MapEncoder, TeacherStudentMethod
from clove_ssl.views.batch import ViewBatch

HEALTH_MAPS = 8  # images whose attention is looked at


class CLoVE(TeacherStudentMethod[MapEncoder]):
    """Contextualized local visual embeddings (Silva et al., 2023)."""

    def __init__(self, config: CLoVEConfig, backbone: Backbone) -> None:
        projector = build_projector(config.projector, backbone.out_channels)
        super().__init__(config, MapEncoder(backbone, projector))
        self.config = config
        self._terms = CellTerms(config, config.loss)
        self.attention = self._terms.attention
        self.cell_loss = self._terms.cell_loss
        self.queue = self._terms.queue
        attracts_only = config.loss.kind == "l2"
        self.headline = ("cos_positive",) if attracts_only else ("cos_positive", "cos_negative")

    @property
    def joins_views(self) -> bool:
        """As the config says."""
        return self.config.joint_views

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """The predictor and the loss."""
        return self.attention, self.cell_loss

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        roles = views_by_role(batch)
        self.before_targets(progress)
        targets = self.by_view(self.teacher, roles[0])
        projected = [self.by_view(self.encoder, views) for views in roles]  # (V * B, D, h, w) each
        comparisons = self._terms.compare(targets, projected, roles)
        if self.training:
            self._terms.collect_negatives(targets, batch.index, progress.step)
        loss = mean_of_terms(comparisons)
        images = projected[0].detach()[: len(batch.index)]  # the first large view
        samples = {
            "embeddings": health.embedding_rows(images),
            "attention_input": images[:HEALTH_MAPS],
        }
        return StepOutput(loss, self._metrics(loss, comparisons), samples)

    def after_step(self, progress: Progress) -> None:
        """Follow the student, where it is done here, and let the queue move on."""
        super().after_step(progress)
        self._terms.enqueue()

    def why_not_captured(self) -> str:
        """With cells of other images, which of them is drawn by the host."""
        return DRAWS_CELLS if self._terms.draws_cells else ""

    def left_by_forward(self) -> list[list[Tensor]]:
        """What the queue gets."""
        return [self._terms.to_enqueue]

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Spread and rank of local embeddings, softness of attention, lag of the teacher."""
        maps = output.artifacts["attention_input"]
        with torch.no_grad():
            weights = self.attention.weights(maps.to(self.attention.out.weight.dtype))
        return super().health(output) | {"attention_entropy": health.attention_entropy(weights)}

    def attention_maps(self, images: Tensor) -> Tensor:
        """What each cell of the student takes from all cells, by head."""
        return self.attention.weight_maps(self.encoder(images))

    def _metrics(self, loss: Tensor, comparisons: Sequence[Comparison]) -> dict[str, Tensor]:
        metrics = health.match_metrics([part.cells for part in comparisons])
        if self.cell_loss.ranking is not None:
            metrics["loss_excess"] = loss.detach() - self.cell_loss.ranking.margin
        return metrics
