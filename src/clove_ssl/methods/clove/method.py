"""CLoVE: predict the local embeddings of one view from contextualized ones of another.

The student is an encoder (backbone and projector) and an attention that mixes
the cells of a view; the teacher is a slow copy of the encoder and sees only
the large views. Every large view is compared with the teacher's other large
views, every small one with all of them: 2 + 12 terms for 2 large and 6 small
views. The terms of one kind are computed in one call, with the pairs of views
one after the other along the batch.

Dimensions: B images, V views of one role, D channels, h x w cells.
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
from clove_ssl.methods.cells import CellLoss, attract_cells
from clove_ssl.methods.clove.attention import (
    NormalizedSelfAttention,
    PlainSelfAttention,
    SelfAttention,
)
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.clove.loss import rank_cells
from clove_ssl.methods.heads import ConvProjector
from clove_ssl.methods.queue import FeatureQueue
from clove_ssl.methods.teacher_student import BackboneEncoder, TeacherStudentMethod
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import match_cells

HEALTH_MAPS = 8  # images whose attention is looked at


class Encoder(BackboneEncoder):
    """What student and teacher have in common: pixels to local embeddings."""

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__(backbone)
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D, h, w)."""
        projected: Tensor = self.projector(self.backbone.features(images))
        return projected


class EncodedViews(NamedTuple):
    """Embeddings of the views of one role, and where those views lie."""

    maps: Sequence[Tensor]  # V x (B, D, h, w), unit vectors in fp32
    boxes: Sequence[Tensor]  # V x (B, 4) signed


class Comparison(NamedTuple):
    """All terms between two roles."""

    cells: CellLoss  # of terms * B images
    terms: int
    weight: float


class CLoVE(TeacherStudentMethod[Encoder]):
    """Contextualized local visual embeddings (Silva et al., 2023)."""

    def __init__(self, config: CLoVEConfig, backbone: Backbone) -> None:
        projector = ConvProjector(
            backbone.out_channels,
            config.projector.hidden,
            config.projector.out,
            bias=config.projector.bias,
            last_norm=config.projector.last_norm,
        )
        super().__init__(config, Encoder(backbone, projector))
        self.config = config
        self.attention = build_attention(config.attention, config.projector.out)
        self.cell_loss = CellComparison(config.loss)
        ranks = self.cell_loss.ranking is not None
        queued = ranks and config.loss.negatives != "intra"
        self.queue = FeatureQueue(config.loss.queue_size, config.projector.out) if queued else None
        self._to_enqueue: list[Tensor] = []
        self.headline = ("cos_positive", "cos_negative") if ranks else ("cos_positive",)

    @property
    def joins_views(self) -> bool:
        """As the config says."""
        return self.config.joint_views

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """The predictor and the loss."""
        return self.attention, self.cell_loss

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        large = [view for view in batch.views if view.role == "global"]
        small = [view for view in batch.views if view.role == "local"]
        self.before_targets(progress)
        targets = self.by_view(self.teacher, large)
        teacher = self._place(unit_vectors(targets, dim=1), large)
        projected = self.by_view(self.encoder, large)  # V * (B, D, h, w), joined
        students = [self._contextualize(projected, large)]
        if small:
            students.append(self._contextualize(self.by_view(self.encoder, small), small))
        comparisons = [
            self._compare(views, teacher, small=number > 0) for number, views in enumerate(students)
        ]
        self._collect_negatives(targets, batch.index, progress)
        loss = mean_of_terms(comparisons)
        images = projected.detach()[: len(batch.index)]  # the first large view
        samples = {
            "embeddings": health.embedding_rows(images),
            "attention_input": images[:HEALTH_MAPS],
        }
        return StepOutput(loss, self._metrics(loss, comparisons), samples)

    def after_step(self, progress: Progress) -> None:
        """Follow the student, where it is done here, and let the queue move on."""
        super().after_step(progress)
        if self.queue is not None:
            for rows in self._to_enqueue:
                self.queue.enqueue(rows)
            self._to_enqueue.clear()

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Spread and rank of local embeddings, softness of attention, lag of the teacher."""
        maps = output.artifacts["attention_input"]
        with torch.no_grad():
            weights = self.attention.weights(maps.to(self.attention.out.weight.dtype))
        return super().health(output) | {"attention_entropy": health.attention_entropy(weights)}

    def _contextualize(self, projected: Tensor, views: Sequence[View]) -> EncodedViews:
        return self._place(unit_vectors(self.attention(projected), dim=1), views)

    def _place(self, maps: Tensor, views: Sequence[View]) -> EncodedViews:
        """Split joined maps into views and put the views' boxes beside them."""
        coordinates = self.config.matching.coordinates
        boxes = [view.geometry.signed_boxes(coordinates).to(maps.device) for view in views]
        return EncodedViews(maps.chunk(len(views)), boxes)

    def _compare(self, student: EncodedViews, teacher: EncodedViews, *, small: bool) -> Comparison:
        """All terms between the student's views of one role and the teacher's."""
        pairs = [
            (i, j)
            for j in range(len(teacher.maps))
            for i in range(len(student.maps))
            if small or i != j
        ]
        context = torch.cat([student.maps[i] for i, _ in pairs])  # (terms * B, D, h, w)
        target = torch.cat([teacher.maps[j] for _, j in pairs])  # (terms * B, D, h', w')
        matches = match_cells(
            torch.cat([student.boxes[i] for i, _ in pairs]),
            torch.cat([teacher.boxes[j] for _, j in pairs]),
            (context.shape[2], context.shape[3]),
            (target.shape[2], target.shape[3]),
            self.config.matching.threshold,
            unit=self.config.matching.unit,
        )
        bank = () if self.queue is None else (self.queue.entries, self.queue.usable())
        cells: CellLoss = self.cell_loss(context, target, matches, *bank)
        return Comparison(cells, len(pairs), self.config.loss.local_weight if small else 1.0)

    def _collect_negatives(self, targets: Tensor, index: Tensor, progress: Progress) -> None:
        """Keep one row per large view and image for the queue, until the step is done."""
        if self.queue is None or not self.training:
            return
        rows = targets.mean((2, 3))  # (V * B, D)
        if self.config.loss.negatives == "inter":
            views = torch.arange(len(targets) // len(index), device=targets.device)
            cells = scattered_cells(index.to(targets.device), views, progress.step, targets)
            rows = targets.flatten(2).take_along_dim(cells[:, None, None], dim=2).squeeze(2)
        # Image by image, so that the order over processes is that of a single one.
        by_image = rows.reshape(-1, len(index), rows.shape[1]).transpose(0, 1).flatten(0, 1)
        self._to_enqueue.append(unit_vectors(by_image))

    def _metrics(self, loss: Tensor, comparisons: Sequence[Comparison]) -> dict[str, Tensor]:
        figures = health.match_figures([part.cells for part in comparisons])
        if self.cell_loss.ranking is not None:
            figures["loss_excess"] = loss.detach() - self.cell_loss.ranking.margin
        return figures


class CellComparison(nn.Module):
    """The loss between matching cells that a config asks for."""

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.ranking = config if config.kind == "ranking" else None
        self._unmatched = config.unmatched_images

    def forward(
        self,
        context: Tensor,  # (B, D, h, w)
        target: Tensor,  # (B, D, h', w')
        matches: Tensor,  # (B, h*w, h'*w') bool
        bank: Tensor | None = None,  # (N, D) negatives of other images
        usable: Tensor | None = None,  # (N,) bool
    ) -> CellLoss:
        """Compare ``B`` pairs of views."""
        if self.ranking is None:
            return attract_cells(context, target, matches, unmatched_images=self._unmatched)
        return rank_cells(
            context, target, matches, options=self.ranking, bank=bank, bank_mask=usable
        )


def build_attention(config: AttentionConfig, dim: int) -> SelfAttention:
    """The predictor a config asks for."""
    if config.kind == "plain":
        return PlainSelfAttention(dim, config.heads)
    return NormalizedSelfAttention(
        dim, config.heads, config.temperature, learn_temperature=config.learn_temperature
    )


def mean_of_terms(comparisons: Sequence[Comparison]) -> Tensor:
    """Weighted mean of the terms of all pairs of views."""
    total = sum(part.weight * part.cells.term_losses(part.terms).sum() for part in comparisons)
    return torch.as_tensor(total) / sum(part.weight * part.terms for part in comparisons)


def scattered_cells(index: Tensor, views: Tensor, step: int, maps: Tensor) -> Tensor:
    """One cell per view and image, (V * B,), that looks random but follows from the arguments.

    No generator is asked, so a resumed run chooses the same cells.
    """
    key = (index[None, :] * 0x9E3779B1 + views[:, None] * 0x85EBCA6B + step * 0xC2B2AE35).flatten()
    key = (key ^ (key >> 15)) * 0x2C1B3C6D
    return (key ^ (key >> 13)) % maps.shape[2:].numel()
