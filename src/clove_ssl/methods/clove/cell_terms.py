"""CLoVE's local loss at one stage of a backbone, for every method that has it.

The student's embeddings of a view are mixed by an attention and compared with
the teacher's of other views: every large view with the teacher's other large
views, every small one with all of them. The terms of one kind are computed in
one call, with the pairs of views one after the other along the batch.

Dimensions: B images, V views of one role, D channels, h x w cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.cells import CellLoss, attract_cells
from clove_ssl.methods.clove.attention import (
    NormalizedSelfAttention,
    PlainSelfAttention,
    SelfAttention,
)
from clove_ssl.methods.clove.cell_contrast import contrast_cells
from clove_ssl.methods.clove.config import AttentionConfig, CLoVEConfig, LossConfig
from clove_ssl.methods.clove.loss import can_rank_views, rank_cells, rank_views
from clove_ssl.methods.config import ProjectorConfig
from clove_ssl.methods.heads import ConvProjector
from clove_ssl.methods.queue import FeatureQueue
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import match_cells

DRAWS_CELLS = "the cells that enter the queue are drawn anew in every step"


class EncodedViews(NamedTuple):
    """Embeddings of the views of one role, and where those views lie."""

    joined: Tensor  # (V * B, D, h, w), unit vectors in fp32
    boxes: Sequence[Tensor]  # V x (B, 4) signed

    @property
    def maps(self) -> tuple[Tensor, ...]:
        """View by view, V x (B, D, h, w)."""
        return self.joined.chunk(len(self.boxes))


class Comparison(NamedTuple):
    """All terms between two roles."""

    cells: CellLoss  # of terms * B images
    terms: int
    weight: float
    skips: bool  # images without a match


class CellTerms:
    """The predictor, the loss and the negatives of one stage, and how views are compared there.

    It is no module: its parts belong to the method, which decides what their parameters are called.
    """

    def __init__(self, config: CLoVEConfig, loss: LossConfig) -> None:
        self.attention = build_attention(config.attention, config.projector.out)
        self.cell_loss = CellComparison(loss)
        queued = loss.kind != "l2" and loss.negatives != "intra"
        self.queue = FeatureQueue(loss.queue_size, config.projector.out) if queued else None
        self._matching = config.matching
        self._loss = loss
        self.to_enqueue: list[Tensor] = []

    def compare(
        self, targets: Tensor, projected: Sequence[Tensor], roles: Sequence[Sequence[View]]
    ) -> list[Comparison]:
        """All terms of a batch: those of large student views, then those of small ones, if any.

        Args:
            targets: The teacher's embeddings of the large views, (V * B, D, h, w).
            projected: The student's, of the views of each role.
            roles: The large views, then the small ones, if any.
        """
        # The teacher has no attention: its targets are local, and only the student has to say what
        # is there from the context.
        teacher = self._place(unit_vectors(targets, dim=1), roles[0])
        students = [
            self._place(unit_vectors(self.attention(maps), dim=1), views)
            for maps, views in zip(projected, roles, strict=True)
        ]
        return [
            self._compare(views, teacher, small=number > 0) for number, views in enumerate(students)
        ]

    def collect_negatives(self, targets: Tensor, index: Tensor, step: int) -> None:
        """Keep one row per large view and image for the queue, until the step is done."""
        if self.queue is None:
            return
        rows = targets.mean((2, 3))  # (V * B, D)
        if self._loss.negatives == "inter":
            views = torch.arange(len(targets) // len(index), device=targets.device)
            cells = scattered_cells(index.to(targets.device), views, step, targets)
            rows = targets.flatten(2).take_along_dim(cells[:, None, None], dim=2).squeeze(2)
        # Image by image, so that the order over processes is that of a single one.
        by_image = rows.reshape(-1, len(index), rows.shape[1]).transpose(0, 1).flatten(0, 1)
        self.to_enqueue.append(unit_vectors(by_image))

    @property
    def draws_cells(self) -> bool:
        """Whether the host draws in every step which cells the queue gets."""
        return self.queue is not None and self._loss.negatives == "inter"

    def enqueue(self) -> None:
        """Let the queue move on by what a step has collected."""
        if self.queue is not None:
            for rows in self.to_enqueue:
                self.queue.enqueue(rows)
            self.to_enqueue.clear()

    def _place(self, maps: Tensor, views: Sequence[View]) -> EncodedViews:
        """Put the views' boxes beside their joined maps."""
        coordinates = self._matching.coordinates
        boxes = [view.geometry.signed_boxes(coordinates).to(maps.device) for view in views]
        return EncodedViews(maps, boxes)

    def _compare(self, student: EncodedViews, teacher: EncodedViews, *, small: bool) -> Comparison:
        """All terms between the student's views of one role and the teacher's."""
        pairs = [
            (i, j)
            # With 2 large and 6 small views these are 2 and 12 terms. All count alike, so small
            # views carry 12 / 14 of the loss, as in the released code.
            for j in range(len(teacher.boxes))
            for i in range(len(student.boxes))
            if small or i != j
        ]
        matches = match_cells(
            torch.cat([student.boxes[i] for i, _ in pairs]),
            torch.cat([teacher.boxes[j] for _, j in pairs]),
            (student.joined.shape[2], student.joined.shape[3]),
            (teacher.joined.shape[2], teacher.joined.shape[3]),
            self._matching.threshold,
            unit=self._matching.unit,
        )
        if self._ranks_at_once(student, teacher):
            images = len(student.boxes[0])
            cells = rank_views(
                student.joined, teacher.joined, matches, images=images, small=small,
                options=self._loss,
            )  # fmt: skip
        else:
            cells = self._compare_pairs(student, teacher, pairs, matches)
        weight = self._loss.local_weight if small else 1.0
        return Comparison(cells, len(pairs), weight, self._loss.unmatched_images == "skip")

    def _ranks_at_once(self, student: EncodedViews, teacher: EncodedViews) -> bool:
        """Whether kernels compare all pairs of views without a copy of any."""
        plain = self.queue is None and self.cell_loss.ranking is not None
        compiled = self.cell_loss._compiled_call_impl is not None
        return plain and not compiled and can_rank_views(student.joined, teacher.joined, self._loss)

    def _compare_pairs(
        self,
        student: EncodedViews,
        teacher: EncodedViews,
        pairs: Sequence[tuple[int, int]],
        matches: Tensor,
    ) -> CellLoss:
        """One pair of views after the other along the batch."""
        maps, others = student.maps, teacher.maps  # V x (B, D, h, w) each
        context = torch.cat([maps[i] for i, _ in pairs])  # (terms * B, D, h, w)
        target = torch.cat([others[j] for _, j in pairs])  # (terms * B, D, h', w')
        # Slots that were never filled hold zeros, whose cosine of 0 would be harder than many a
        # negative.
        bank = () if self.queue is None else (self.queue.entries, self.queue.usable())
        cells: CellLoss = self.cell_loss(context, target, matches, *bank)
        return cells


class CellComparison(nn.Module):
    """The loss between matching cells that a config asks for."""

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.ranking = config if config.kind == "ranking" else None
        self.temperature = config.temperature if config.kind == "infonce" else None
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
        if self.temperature is not None:
            return contrast_cells(
                context,
                target,
                matches,
                temperature=self.temperature,
                unmatched_images=self._unmatched,
                bank=bank,
                bank_mask=usable,
            )
        if self.ranking is None:
            return attract_cells(context, target, matches, unmatched_images=self._unmatched)
        return rank_cells(
            context, target, matches, options=self.ranking, bank=bank, bank_mask=usable
        )


def views_by_role(batch: ViewBatch) -> list[list[View]]:
    """The large views of a batch, then the small ones, if any."""
    large = [view for view in batch.views if view.role == "global"]
    small = [view for view in batch.views if view.role == "local"]
    return [large, small] if small else [large]


def build_projector(config: ProjectorConfig, in_channels: int) -> ConvProjector:
    """The projector a config asks for, on a map of so many channels."""
    return ConvProjector(
        in_channels, config.hidden, config.out, bias=config.bias, last_norm=config.last_norm
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
    total = sum(
        part.weight * part.cells.term_losses(part.terms, skips=part.skips).sum()
        for part in comparisons
    )
    return torch.as_tensor(total) / sum(part.weight * part.terms for part in comparisons)


def scattered_cells(index: Tensor, views: Tensor, step: int, maps: Tensor) -> Tensor:
    """One cell per view and image, (V * B,), that looks random but follows from the arguments.

    No generator is asked, so a resumed run chooses the same cells.
    """
    # Odd constants and shifts of a common integer hash: neighbouring images and steps get cells
    # that have nothing to do with each other. int64 wraps around alike on all devices.
    key = (index[None, :] * 0x9E3779B1 + views[:, None] * 0x85EBCA6B + step * 0xC2B2AE35).flatten()
    key = (key ^ (key >> 15)) * 0x2C1B3C6D
    return (key ^ (key >> 13)) % maps.shape[2:].numel()
