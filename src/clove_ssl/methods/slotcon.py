"""SlotCon: group cells by learned prototypes, and contrast the groups of whole batches.

Student and teacher project cells and score them against prototypes of their
own. On the part of the image that both views share, the student's scores have
to agree with the teacher's; and each slot (the mean cell of a prototype) of the
student has to find its counterpart among all slots of the teacher.

Each view is normalised by its own batch statistics. Both directions are one batch: the student's
first and second view beside the teacher's second and first.

Dimensions: B images, P = 2 * B views, K prototypes, D channels, h x w cells; M slots of a view
can be active at most, R = B * M of a batch; N keys come from all processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.methods.slotcon import SlotConConfig, SlotLossConfig
from clove_ssl.losses.slots import (
    SlotContrast,
    active_first,
    contrast_slots,
    group_cells,
    score_cells,
    slots_of,
    true_first,
    winners,
)
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.teaching import BackboneEncoder, TaughtMethod
from clove_ssl.methods.two_views import swap_views, view_pair
from clove_ssl.modules.normalization import unit_vectors
from clove_ssl.modules.queue import mean_over_processes
from clove_ssl.modules.slots import (
    conv_head,
    gather_from_processes,
    linear_head,
)
from clove_ssl.modules.transfers import HostCopy
from clove_ssl.views.batch import ViewBatch
from clove_ssl.views.overlap import area_share, place_in_view, resample, shared_rectangle


class Grouping(NamedTuple):
    """Views, as an encoder sees them."""

    projection: Tensor  # (P, D, h, w)
    scores: Tensor  # (P, K, h, w)
    cells: Tensor  # (P, D, h, w) unit vectors
    prototypes: Tensor  # (K, D) unit vectors


class SharedPart(NamedTuple):
    """What the two views of every image have in common."""

    places: Tensor  # (P, 4) in the unit square of each view
    exists: Tensor  # (B,) bool


class LinedUp(NamedTuple):
    """Slots of the student and of the teacher's other view, in both directions.

    There is room for all slots that are active in the teacher's view.
    """

    won: Tensor  # (P, K) bool, slots in the student's view
    slots: Tensor  # (2, R, D) the student's
    keys: Tensor  # (2, R, D) the teacher's
    taken: Tensor  # (2, R) bool, by slots that are active in the teacher's view
    common_first: Tensor  # (2, R) places, those of common slots in front
    common_count: Tensor  # (2,) number of common slots


class Encoder(BackboneEncoder):
    """What student and teacher have in common: backbone, projector and prototypes."""

    def __init__(self, backbone: Backbone, config: SlotConConfig) -> None:
        super().__init__(backbone)
        self.projector = conv_head(backbone.out_channels, config.head.hidden, config.head.out)
        self.prototypes = nn.Parameter(torch.randn(config.prototypes, config.head.out))

    def forward(self, images: Tensor) -> Grouping:
        """Project (B, 3, H, W) images and score their cells."""
        return self.group(self.project(images))

    def project(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D, h, w)."""
        projected: Tensor = self.projector(self.backbone.features(images))
        return projected

    def group(self, projection: Tensor) -> Grouping:
        """Score the cells of projected views."""
        cells, prototypes = unit_vectors(projection, dim=1), unit_vectors(self.prototypes)
        return Grouping(projection, score_cells(cells, prototypes), cells, prototypes)


class GroupLoss(nn.Module):
    """Do student and teacher group the part that two views share alike?"""

    def __init__(self, options: SlotLossConfig) -> None:
        super().__init__()
        self.options = options

    def forward(
        self,
        student: Tensor,  # (P, D, h, w) cells
        student_prototypes: Tensor,  # (K, D)
        teacher: Tensor,  # (P, D, h, w) cells of the other view
        teacher_prototypes: Tensor,  # (K, D)
        places: Tensor,  # (P, 4)
        exists: Tensor,  # (B,) bool
        center: Tensor,  # (K,)
    ) -> Tensor:
        """Both directions, each averaged over the images whose views overlap."""
        # Scores are products, so those of resampled cells are resampled scores, of which there is
        # more to move.
        here = score_cells(resample(student, places), student_prototypes)
        there = score_cells(resample(teacher, swap_views(places)), teacher_prototypes)
        by_view = group_cells(
            here,
            there,
            center,
            student_temperature=self.options.student_temperature,
            teacher_temperature=self.options.teacher_temperature,
        )  # (P,)
        return (by_view * exists.repeat(2)).sum() / exists.sum().clamp(min=1)


class LineUp(nn.Module):
    """Which slots of student and teacher belong together?"""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(
        self,
        projection: Tensor,  # (P, D, h, w) the student's
        scores: Tensor,  # (P, K, h, w)
        target_projection: Tensor,  # (P, D, h, w) the teacher's of the other view
        target_scores: Tensor,  # (P, K, h, w)
    ) -> LinedUp:
        """The slots of both sides, in both directions."""
        won, active = winners(scores), winners(target_scores)  # (P, K)
        prototypes, taken = active_first(active, scores.shape[2:].numel())  # (P, M)
        keys = slots_of(target_projection, target_scores, self.temperature, only=prototypes)
        slots = slots_of(projection, scores, self.temperature, only=prototypes)  # (P, M, D)
        common = _by_direction(taken & won.take_along_dim(prototypes, dim=1))  # (2, R)
        return LinedUp(
            won,
            _by_direction(slots),
            _by_direction(keys),
            _by_direction(taken),
            true_first(common),
            common.sum(1),
        )


class SlotCon(TaughtMethod[Encoder]):
    """Self-supervised visual representation learning with semantic grouping (Wen et al., 2022)."""

    headline = ("loss_group", "loss_slot")
    center: Tensor

    def __init__(self, config: SlotConConfig, backbone: Backbone) -> None:
        super().__init__(config, Encoder(backbone, config))
        self.config = config
        self.predictor = linear_head(config.head.out, config.head.hidden, config.head.out)
        self.group_loss = GroupLoss(config.loss)
        self.line_up = LineUp(config.loss.teacher_temperature)
        self.register_buffer("center", torch.zeros(config.prototypes))  # (K,)
        self._mean_scores: list[Tensor] = []

    @property
    def joins_views(self) -> bool:
        """No, as published."""
        return False

    def tail(self) -> tuple[nn.Module, ...]:
        """All but the predictor and its loss: the number of common slots changes."""
        return self.group_loss, self.line_up

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        self.before_targets(progress)
        with torch.no_grad():
            teacher = self._targets(batch)
        student = self.encoder.group(self.by_view(self.encoder.project, batch.views))
        lined_up: LinedUp = self.line_up(
            student.projection, student.scores, teacher.projection, teacher.scores
        )
        counts = HostCopy(lined_up.common_count)
        shared = self._shared_part(batch)
        group: Tensor = self.group_loss(
            student.cells,
            student.prototypes,
            teacher.cells,
            teacher.prototypes,
            *shared,
            self.center,
        )
        self._note_scores(teacher)
        slots = [self._slot_loss(lined_up, here, count) for here, count in enumerate(counts.read())]
        slot = slots[0].loss + slots[1].loss
        weight = self.config.loss.group_weight
        figures = {
            "loss_group": group.detach(),
            "loss_slot": slot.detach(),
            "cos_slot": (slots[0].cosine + slots[1].cosine) / 2,
            "images_without_overlap": (~shared.exists).float().mean(),
            **slot_figures(lined_up.won),
        }
        rows = health.embedding_rows(student.projection)
        return StepOutput(weight * group + (1 - weight) * slot, figures, {"embeddings": rows})

    def after_step(self, progress: Progress) -> None:
        """Move the centre towards the mean score of the step, and follow the student."""
        super().after_step(progress)
        if self._mean_scores:
            seen = mean_over_processes(torch.stack(self._mean_scores).mean(0))
            self.center.lerp_(seen.to(self.center.dtype), 1 - self.config.loss.center_momentum)
            self._mean_scores.clear()

    def _targets(self, batch: ViewBatch) -> Grouping:
        """The teacher's, each view in the place of the other one."""
        teacher = self.teacher.module
        return teacher.group(swap_views(self.by_view(teacher.project, batch.views)))

    def _shared_part(self, batch: ViewBatch) -> SharedPart:
        device = batch.views[0].pixels.device
        first, second = (
            view.geometry.signed_boxes("pixel").to(device) for view in view_pair(batch)
        )
        rectangle = shared_rectangle(first, second)
        share = area_share(rectangle, second)
        exists = (share > 0) & (share >= self.config.loss.min_overlap)
        places = [place_in_view(rectangle, first), place_in_view(rectangle, second)]
        return SharedPart(torch.cat(places), exists)

    def _slot_loss(self, lined_up: LinedUp, here: int, count: int) -> SlotContrast:
        """The ``count`` common slots of one direction look for themselves among the teacher's."""
        keys, start = gather_from_processes(lined_up.keys[here])  # (N, D)
        # Bytes, since not every backend sends booleans.
        usable, _ = gather_from_processes(lined_up.taken[here].to(torch.uint8))  # (N,)
        places = lined_up.common_first[here, :count]
        queries = self._predict(lined_up.slots[here].index_select(0, places))
        return contrast_slots(
            queries,
            keys,
            usable.bool(),
            start + places,
            temperature=self.config.loss.slot_temperature,
        )

    def _predict(self, slots: Tensor) -> Tensor:
        """Predictions from (Q, D) slots; batch norm sees only slots that take part."""
        if len(slots) != 1:
            predicted: Tensor = self.predictor(slots)
            return predicted
        # A batch of one has no variance; its twin changes neither statistics nor result.
        twins: Tensor = self.predictor(slots.expand(2, -1))
        return twins[:1]

    def _note_scores(self, teacher: Grouping) -> None:
        """Keep the mean score of every prototype over both whole views, until the step is done."""
        if self.training:
            self._mean_scores.append(teacher.scores.mean((0, 2, 3)))  # (K,)


def _by_direction(values: Tensor) -> Tensor:
    """What belongs to the slots of each view, (P, M, ...), as (2, R, ...)."""
    return values.reshape(2, -1, *values.shape[2:])


def slot_figures(won: Tensor) -> dict[str, Tensor]:
    """How many groups a view falls into, and which share of the prototypes a batch uses.

    ``won`` (P, K) says which prototypes win a cell of each view.
    """
    return {
        "slots_per_image": won.sum(1).float().mean(),
        "prototypes_in_use": won.any(0).float().mean(),
    }
