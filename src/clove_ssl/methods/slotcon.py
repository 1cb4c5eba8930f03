"""SlotCon: group cells by learned prototypes, and contrast the groups of whole batches.

Student and teacher project cells and score them against prototypes of their
own. On the part of the image that both views share, the student's scores have
to agree with the teacher's; and each slot (the mean cell of a prototype) of the
student has to find its counterpart among all slots of the teacher.

Dimensions: B images, K prototypes, D channels, h x w cells; M slots of an image
can be active at most, N keys come from all processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.methods.slotcon import SlotConConfig
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
from clove_ssl.methods.two_views import view_pair
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
    """One view of a batch, as an encoder sees it."""

    projection: Tensor  # (B, D, h, w)
    scores: Tensor  # (B, K, h, w)
    cells: Tensor  # (B, D, h, w) unit vectors
    prototypes: Tensor  # (K, D) unit vectors

    def scores_at(self, places: Tensor) -> Tensor:
        """Scores on the grid laid over ``places`` (B, 4): (B, K, h, w).

        Scores are products, so resampled scores are those of resampled cells, of which there is
        less to move.
        """
        return score_cells(resample(self.cells, places), self.prototypes)

    def slots(self, temperature: float, only: Tensor) -> Tensor:
        """The slots of some prototypes of each image (B, M): (B, M, D)."""
        return slots_of(self.projection, self.scores, temperature, only=only)


class SharedPart(NamedTuple):
    """What the two views of every image have in common."""

    places: tuple[Tensor, Tensor]  # (B, 4) in the unit square of each view
    exists: Tensor  # (B,) bool


class LineUp(NamedTuple):
    """Slots of one view of the student and of the other view of the teacher.

    There are R = B * M places, with room for all slots that are active in the teacher's view.
    """

    won: Tensor  # (B, K) bool, slots in the student's view
    slots: Tensor  # (R, D) the student's
    common_first: Tensor  # (R,) places, those of common slots in front
    common_count: Tensor  # scalar, number of common slots
    keys: Tensor  # (N, D) the teacher's, of all processes
    usable: Tensor  # (N,) bool, keys of active slots
    start: int  # where the keys of this process begin


class Encoder(BackboneEncoder):
    """What student and teacher have in common: backbone, projector and prototypes."""

    def __init__(self, backbone: Backbone, config: SlotConConfig) -> None:
        super().__init__(backbone)
        self.projector = conv_head(backbone.out_channels, config.head.hidden, config.head.out)
        self.prototypes = nn.Parameter(torch.randn(config.prototypes, config.head.out))

    def forward(self, images: Tensor) -> Grouping:
        """Project (B, 3, H, W) images and score their cells."""
        projection = self.projector(self.backbone.features(images))
        cells, prototypes = unit_vectors(projection, dim=1), unit_vectors(self.prototypes)
        return Grouping(projection, score_cells(cells, prototypes), cells, prototypes)


class SlotCon(TaughtMethod[Encoder]):
    """Self-supervised visual representation learning with semantic grouping (Wen et al., 2022)."""

    headline = ("loss_group", "loss_slot")
    center: Tensor

    def __init__(self, config: SlotConConfig, backbone: Backbone) -> None:
        super().__init__(config, Encoder(backbone, config))
        self.config = config
        self.predictor = linear_head(config.head.out, config.head.hidden, config.head.out)
        self.register_buffer("center", torch.zeros(config.prototypes))  # (K,)
        self._mean_scores: list[Tensor] = []

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        self.before_targets(progress)
        with torch.no_grad():
            teachers = [self.teacher.module(view.pixels) for view in view_pair(batch)]
        students = [self.encoder(view.pixels) for view in view_pair(batch)]
        line_ups = [self._line_up(students[here], teachers[1 - here]) for here in (0, 1)]
        counts = HostCopy(torch.stack([each.common_count for each in line_ups]))
        shared = self._shared_part(batch)
        group = self._group_loss(students, teachers, shared)
        self._note_scores(teachers)
        slots = [self._slot_loss(*each) for each in zip(line_ups, counts.read(), strict=True)]
        slot = slots[0].loss + slots[1].loss
        weight = self.config.loss.group_weight
        loss = weight * group + (1 - weight) * slot
        figures = {
            "loss_group": group.detach(),
            "loss_slot": slot.detach(),
            "cos_slot": (slots[0].cosine + slots[1].cosine) / 2,
            "images_without_overlap": (~shared.exists).float().mean(),
            **slot_figures(line_ups[0].won),
        }
        return StepOutput(
            loss, figures, {"embeddings": health.embedding_rows(students[0].projection)}
        )

    def after_step(self, progress: Progress) -> None:
        """Move the centre towards the mean score of the step, and follow the student."""
        super().after_step(progress)
        if self._mean_scores:
            seen = mean_over_processes(torch.stack(self._mean_scores).mean(0))
            self.center.lerp_(seen.to(self.center.dtype), 1 - self.config.loss.center_momentum)
            self._mean_scores.clear()

    def _shared_part(self, batch: ViewBatch) -> SharedPart:
        device = batch.views[0].pixels.device
        first, second = (
            view.geometry.signed_boxes("pixel").to(device) for view in view_pair(batch)
        )
        rectangle = shared_rectangle(first, second)
        share = area_share(rectangle, second)
        exists = (share > 0) & (share >= self.config.loss.min_overlap)
        return SharedPart(
            (place_in_view(rectangle, first), place_in_view(rectangle, second)), exists
        )

    def _group_loss(
        self, students: list[Grouping], teachers: list[Grouping], shared: SharedPart
    ) -> Tensor:
        """Both directions, each averaged over the images whose views overlap."""
        options, total = self.config.loss, torch.zeros((), device=shared.exists.device)
        for here, there in ((0, 1), (1, 0)):
            by_image = group_cells(
                students[here].scores_at(shared.places[here]),
                teachers[there].scores_at(shared.places[there]),
                self.center,
                student_temperature=options.student_temperature,
                teacher_temperature=options.teacher_temperature,
            )  # (B,)
            total = total + (by_image * shared.exists).sum() / shared.exists.sum().clamp(min=1)
        return total

    def _line_up(self, student: Grouping, teacher: Grouping) -> LineUp:
        """The slots of both sides, and which of them belong together."""
        temperature = self.config.loss.teacher_temperature
        limit = teacher.scores.shape[2:].numel()
        won, active = winners(student.scores), winners(teacher.scores)  # (B, K)
        prototypes, taken = active_first(active, limit)  # (B, M)
        keys, start = gather_from_processes(teacher.slots(temperature, prototypes).flatten(0, 1))
        # Bytes, since not every backend sends booleans.
        usable, _ = gather_from_processes(taken.flatten().to(torch.uint8))  # (N,)
        slots = student.slots(temperature, prototypes).flatten(0, 1)  # (R, D)
        common = (taken & won.take_along_dim(prototypes, dim=1)).flatten()  # (R,)
        return LineUp(won, slots, true_first(common), common.sum(), keys, usable.bool(), start)

    def _slot_loss(self, line_up: LineUp, count: int) -> SlotContrast:
        """The ``count`` common slots look for themselves among the teacher's."""
        places = line_up.common_first[:count]
        queries = self._predict(line_up.slots.index_select(0, places))
        return contrast_slots(
            queries,
            line_up.keys,
            line_up.usable,
            line_up.start + places,
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

    def _note_scores(self, teachers: list[Grouping]) -> None:
        """Keep the mean score of every prototype over both whole views, until the step is done."""
        if self.training:
            means = [teacher.scores.mean((0, 2, 3)) for teacher in teachers]  # 2 x (K,)
            self._mean_scores.append(torch.stack(means).mean(0))


def slot_figures(won: Tensor) -> dict[str, Tensor]:
    """How many groups an image falls into, and which share of the prototypes a batch uses.

    ``won`` (B, K) says which prototypes win a cell of each image.
    """
    return {
        "slots_per_image": won.sum(1).float().mean(),
        "prototypes_in_use": won.any(0).float().mean(),
    }
