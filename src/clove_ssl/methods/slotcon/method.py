"""SlotCon: group cells by learned prototypes, and contrast the groups of whole batches.

In the order of the paper: student and teacher project cells and score them against
prototypes of their own (:class:`Encoder`, :class:`Assignment`). On the part of the image that
both views share, the student's scores have to agree with the teacher's, and the cells of a
prototype, averaged, are its slot (:class:`Comparison`). Each slot of the student has to find its
counterpart among all slots of the teacher (:class:`SlotSearch`).

Each view is normalised by its own batch statistics. Both directions are one batch: the student's
first and second view beside the teacher's second and first. How slots, of which there are more or
fewer in every step, lie in tensors of fixed shape is said in ``layout.py``.

Dimensions: B images, P = 2 * B views, K prototypes, D channels, h x w cells; M slots of a view
can be active at most, R = B * M of a batch; N keys come from all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.collectives import mean_count, mean_over_processes
from clove_ssl.layers.normalization import normalize_counted, unit_vectors
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.contrastive import mean_of_sum
from clove_ssl.methods.slotcon.config import SlotConConfig, SlotLossConfig
from clove_ssl.methods.slotcon.layout import (
    CommonSlots,
    SlotPlaces,
    by_direction,
    gather_keys,
    place_slots,
)
from clove_ssl.methods.slotcon.loss import (
    Keys,
    SlotContrast,
    contrast_slots,
    group_cells,
    score_cells,
    slots_of,
    winners,
)
from clove_ssl.methods.teacher_student import MapEncoder, TeacherStudentMethod
from clove_ssl.methods.two_views import swap_views
from clove_ssl.views.batch import ViewBatch
from clove_ssl.views.overlap import area_share, place_in_view, resample, shared_rectangle


class SharedPart(NamedTuple):
    """What the two views of every image have in common."""

    places: Tensor  # (P, 4) in the unit square of each view
    exists: Tensor  # (B,) bool


class Sides(NamedTuple):
    """The student, and the teacher on the other view."""

    projection: Tensor  # (P, D, h, w)
    prototypes: Tensor  # (K, D)
    target: Tensor  # (P, D, h, w)
    target_prototypes: Tensor  # (K, D)


class Compared(NamedTuple):
    """What is compared of the student and of the teacher's other view."""

    group_loss: Tensor  # scalar
    slots: Tensor  # (2, R, D) the student's
    keys: Tensor  # (2, R, D) the teacher's


class Encoder(MapEncoder):
    """What student and teacher have in common: backbone, projector and prototypes."""

    def __init__(self, backbone: Backbone, config: SlotConConfig) -> None:
        head = config.head
        super().__init__(backbone, _conv_head(backbone.out_channels, head.hidden, head.out))
        # Of the encoder, not beside it: the teacher averages prototypes along with weights.
        self.prototypes = nn.Parameter(torch.randn(config.prototypes, head.out))


def scores_of(projection: Tensor, prototypes: Tensor) -> Tensor:
    """Scores of (B, D, h, w) projections for (K, D) prototypes: (B, K, h, w)."""
    return score_cells(unit_vectors(projection, dim=1), unit_vectors(prototypes))


@torch.no_grad()
def mean_scores(projection: Tensor, prototypes: Tensor) -> Tensor:
    """Mean score of each prototype, (K,): scores are products, so that of the mean cell."""
    cell = unit_vectors(projection, dim=1).mean((0, 2, 3))  # (D,)
    return (unit_vectors(prototypes) * cell).sum(1)


class Assignment(nn.Module):
    """Which prototypes win cells, and so which slots are active?

    It comes before all else, since the host waits for its counts; the comparison, whose scores
    have gradients, computes them once more.
    """

    def forward(self, sides: Sides) -> SlotPlaces:
        """The slots of both sides, in both directions."""
        won = winners(scores_of(sides.projection, sides.prototypes))  # (P, K)
        active = winners(scores_of(sides.target, sides.target_prototypes))
        return place_slots(won, active, limit=sides.target.shape[2:].numel())


class Comparison(nn.Module):
    """Do student and teacher group alike what two views share, and which are their slots?"""

    def __init__(self, options: SlotLossConfig) -> None:
        super().__init__()
        self.options = options

    def forward(
        self,
        sides: Sides,
        room: Tensor,  # (P, M) prototypes whose slots are wanted
        shared: SharedPart,
        images: Tensor,  # scalar, whose views overlap, on average of all processes
        center: Tensor,  # (K,)
    ) -> Compared:
        """The loss of grouping, averaged over the images whose views overlap, and the slots."""
        mine, theirs = unit_vectors(sides.prototypes), unit_vectors(sides.target_prototypes)
        cells, others = unit_vectors(sides.projection, dim=1), unit_vectors(sides.target, dim=1)
        # Scores are products, so those of resampled cells are resampled scores, of which there is
        # more to move.
        by_view = group_cells(
            score_cells(resample(cells, shared.places), mine),
            score_cells(resample(others, swap_views(shared.places)), theirs),
            center,
            student_temperature=self.options.student_temperature,
            teacher_temperature=self.options.teacher_temperature,
        )  # (P,)
        sharp = self.options.teacher_temperature
        slots = slots_of(sides.projection, score_cells(cells, mine), sharp, only=room)  # (P, M, D)
        keys = slots_of(sides.target, score_cells(others, theirs), sharp, only=room)
        # Both directions of an image over one count of images, so they are added, not averaged.
        loss = mean_of_sum((by_view * shared.exists.repeat(2)).sum(), images)
        return Compared(loss, by_direction(slots), by_direction(keys))


class SlotSearch(nn.Module):
    """Common slots, predicted from the student's, look for themselves among the teacher's."""

    def __init__(self, config: SlotConConfig) -> None:
        super().__init__()
        self.predictor = _linear_head(config.head.out, config.head.hidden, config.head.out)
        self.temperature = config.loss.slot_temperature

    def forward(
        self,
        slots: Tensor,  # (2, R, D) the student's
        places: Tensor,  # (Q, 2) where slots of each direction are, common ones in front
        counts: Tensor,  # (2,) number of common slots
        means: Tensor,  # (2,) the same, on average of all processes
        keys: Sequence[Keys],  # of each direction
        start: int,  # where the keys of this process begin
    ) -> SlotContrast:
        """The losses of both directions together, and their mean cosine."""
        order, ways = torch.arange(len(places), device=places.device), places.unbind(1)
        common = [order < count for count in counts]  # (Q,)
        chosen = [mine.index_select(0, at) for mine, at in zip(slots, ways, strict=True)]
        predicted = self.predict(torch.stack(chosen), common)
        first, second = (
            contrast_slots(
                queries, theirs, start + at, met, temperature=self.temperature, count=mean
            )
            for queries, theirs, at, met, mean in zip(
                predicted, keys, ways, common, means, strict=True
            )
        )
        return SlotContrast(first.loss + second.loss, (first.cosine + second.cosine) / 2)

    def predict(self, slots: Tensor, common: Sequence[Tensor]) -> Tensor:
        """Predictions from (2, Q, D) slots; batch norm keeps directions apart.

        Its statistics are those of common slots, as ``common`` says, (Q,) bool for each direction.
        """
        for layer in self.predictor:
            if isinstance(layer, _BatchNorm):
                normalized = [
                    normalize_counted(layer, rows, met)
                    for rows, met in zip(slots, common, strict=True)
                ]
                slots = torch.stack(normalized)
            else:
                slots = layer(slots)
        return slots


class SlotCon(TeacherStudentMethod[Encoder]):
    """Self-supervised visual representation learning with semantic grouping (Wen et al., 2022)."""

    headline = ("loss_group", "loss_slot")
    center: Tensor

    def __init__(self, config: SlotConConfig, backbone: Backbone) -> None:
        super().__init__(config, Encoder(backbone, config))
        self.config = config
        self.assignment = Assignment()
        self.comparison = Comparison(config.loss)
        self.search = SlotSearch(config)
        self.register_buffer("center", torch.zeros(config.prototypes))  # (K,)
        self._mean_scores: list[Tensor] = []

    @property
    def joins_views(self) -> bool:
        """No, as published."""
        return False

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """Which slots are active, what is compared, and the search for the teacher's slots."""
        return self.assignment, self.comparison, self.search

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        self.before_targets(progress)
        sides, shared = self._encode(batch), self._shared_part(batch)
        with torch.no_grad():
            active: SlotPlaces = self.assignment(sides)
        common = CommonSlots(active, self.config.slot_room)
        counts = mean_count(torch.cat([shared.exists.sum()[None], active.common_count]))  # (3,)
        compared: Compared = self.comparison(
            sides, active.prototypes, shared, counts[0], self.center
        )
        keys, start = gather_keys(compared.keys, active.taken)
        samples = {"embeddings": health.embedding_rows(sides.projection)}
        metrics = {
            "loss_group": compared.group_loss.detach(),
            "images_without_overlap": (~shared.exists).float().mean(),
            **slot_metrics(active.won),
        }
        found: SlotContrast = self.search(
            compared.slots, common.places(), active.common_count, counts[1:], keys, start
        )
        metrics["loss_slot"] = found.loss.detach()
        metrics["cos_slot"] = found.cosine
        weight = self.config.loss.group_weight
        loss = weight * compared.group_loss + (1 - weight) * found.loss
        return StepOutput(loss, metrics, samples)

    def why_not_captured(self) -> str:
        """Images bring slots along as they like, and may be given the same room in every step."""
        if self.config.slot_room == "all":
            return ""
        return "the number of common slots changes from step to step"

    def left_by_forward(self) -> list[list[Tensor]]:
        """What the centre follows."""
        return [self._mean_scores]

    def after_step(self, progress: Progress) -> None:
        """Move the centre towards the mean score of the step, and follow the student."""
        super().after_step(progress)
        if self._mean_scores:
            seen = mean_over_processes(torch.stack(self._mean_scores).mean(0))
            self.center.lerp_(seen.to(self.center.dtype), 1 - self.config.loss.center_momentum)
            self._mean_scores.clear()

    def _encode(self, batch: ViewBatch) -> Sides:
        """Project all views, and note the teacher's mean scores until the step is done."""
        target, theirs = self.by_view(self.teacher, batch.views), self.teacher.module.prototypes
        if self.training:
            self._mean_scores.append(mean_scores(target, theirs))
        projection = self.by_view(self.encoder, batch.views)
        return Sides(projection, self.encoder.prototypes, swap_views(target), theirs)

    def _shared_part(self, batch: ViewBatch) -> SharedPart:
        device = batch.views[0].pixels.device
        first, second = (view.geometry.signed_boxes("pixel").to(device) for view in batch.views)
        rectangle = shared_rectangle(first, second)
        share = area_share(rectangle, second)
        exists = (share > 0) & (share >= self.config.loss.min_overlap)
        places = [place_in_view(rectangle, first), place_in_view(rectangle, second)]
        return SharedPart(torch.cat(places), exists)


def slot_metrics(won: Tensor) -> dict[str, Tensor]:
    """How many groups a view falls into, and which share of the prototypes a batch uses.

    ``won`` (P, K) says which prototypes win a cell of each view.
    """
    return {
        "slots_per_image": won.sum(1).float().mean(),
        "prototypes_in_use": won.any(0).float().mean(),
    }


def _conv_head(in_channels: int, hidden: int, out: int) -> nn.Sequential:
    """Three 1x1 convolutions with batch norm and GELU between them, for feature maps."""
    return _head(partial(nn.Conv2d, kernel_size=1), nn.BatchNorm2d, in_channels, hidden, out)


def _linear_head(in_channels: int, hidden: int, out: int) -> nn.Sequential:
    """The same for rows: three linear layers."""
    return _head(nn.Linear, nn.BatchNorm1d, in_channels, hidden, out)


def _head(
    layer: Callable[[int, int], nn.Module],
    norm: Callable[[int], nn.Module],
    in_channels: int,
    hidden: int,
    out: int,
) -> nn.Sequential:
    head = nn.Sequential(
        layer(in_channels, hidden),
        norm(hidden),
        nn.GELU(),
        layer(hidden, hidden),
        norm(hidden),
        nn.GELU(),
        layer(hidden, out),
    )
    head.apply(_start_small)
    return head


@torch.no_grad()
def _start_small(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
