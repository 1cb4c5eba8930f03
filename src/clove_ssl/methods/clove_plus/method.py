"""CLoVE Plus: CLoVE's local loss at several stages, and a loss that tells images apart.

Cells are compared at each of some stages of the backbone as CLoVE compares them
at one, with a projector and an attention for each; the mean of these losses is
``L_cells``. What they are compared with are the student's own embeddings of the other
view, through which no gradient goes back, or those of a teacher. The mean of the
student's last map goes through an expander, where ``L_whole`` (VICReg) compares whole
images; it keeps them apart, so that no teacher is needed for that.

    L = L_cells + beta * r * L_whole

r makes both pull equally hard at the student's map of the first stage with a local
loss (``methods/clove_plus/balance.py``), measured on the large views.

Dimensions: B images, V views of one role, C channels of a stage, D of an embedding, h x w cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import STAGES, Backbone
from clove_ssl.errors import UserError
from clove_ssl.layers.collectives import gather_with_gradient
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
from clove_ssl.methods.clove.method import HEALTH_MAPS
from clove_ssl.methods.clove_plus.balance import GradientBalance
from clove_ssl.methods.clove_plus.config import CLoVEPlusConfig, WholeConfig
from clove_ssl.methods.clove_plus.loss import (
    contrast_images,
    counts_of_pairs,
    pairs_with_large,
)
from clove_ssl.methods.heads import build_expander
from clove_ssl.methods.teacher_student import BackboneEncoder, StudentMethod, TeacherStudentMethod
from clove_ssl.methods.variance import check_spreads, global_terms
from clove_ssl.methods.vicregl.method import term_metrics
from clove_ssl.schedules import cosine, linear
from clove_ssl.views.batch import View, ViewBatch


class StagesEncoder(BackboneEncoder):
    """Pixels to local embeddings of several stages: the student, and the teacher if any."""

    def __init__(self, backbone: Backbone, config: CLoVEPlusConfig) -> None:
        super().__init__(backbone)
        self.stages: list[str] = [stage for stage in STAGES if stage in config.stages]
        _check_stages(self.stages, backbone)
        backbone.hand_out(self.stages)
        self.projectors = nn.ModuleDict(
            {
                stage: build_projector(config.projector, backbone.channels[stage])
                for stage in self.stages
            }
        )

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> (B, D, h, w) of each stage; the maps (B, C, h, w) of first and last."""
        maps = self.backbone.maps(images)
        projected = [self.projectors[stage](maps[stage]) for stage in self.stages]
        return (*projected, maps[self.stages[0]], maps[self.backbone.stage])

    def embeddings(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D, h, w) of the deepest stage."""
        deepest: Tensor = self(images)[len(self.stages) - 1]
        return deepest


class EncodedStages(NamedTuple):
    """Views of one role behind an encoder."""

    projected: dict[str, Tensor]  # by stage, (V * B, D, h, w)
    first_maps: list[Tensor]  # of the first stage with a local loss, pass by pass, (..., C, h, w)
    last_maps: list[Tensor]  # of the last stage, pass by pass

    def as_targets(self) -> EncodedStages:
        """The same embeddings, through which no gradient goes back."""
        detached = {stage: maps.detach() for stage, maps in self.projected.items()}
        return self._replace(projected=detached)


class PooledExpander(nn.Module):
    """A map to the embedding of a whole image."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.expander = build_expander(in_channels, width)

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, D)."""
        expanded: Tensor = self.expander(feature_map.mean((2, 3)))
        return expanded


class CLoVEPlus(StudentMethod[StagesEncoder]):
    """CLoVE at several stages without a teacher, and a loss that tells whole images apart."""

    headline = ("loss_cells", "loss_whole", "balance")

    def __init__(self, config: CLoVEPlusConfig, backbone: Backbone) -> None:
        super().__init__(config, StagesEncoder(backbone, config))
        self.config = config
        # Plain objects; their modules are registered below under names of the method's own, which
        # are what checkpoints have.
        self._terms = {
            stage: CellTerms(config, config.loss_at(stage)) for stage in self.encoder.stages
        }
        self.attentions = nn.ModuleDict({s: terms.attention for s, terms in self._terms.items()})
        self.cell_losses = nn.ModuleDict({s: terms.cell_loss for s, terms in self._terms.items()})
        self.queues = nn.ModuleDict(
            {s: terms.queue for s, terms in self._terms.items() if terms.queue is not None}
        )
        self.whole_head = PooledExpander(backbone.out_channels, config.whole.width)
        self.balance = GradientBalance(
            start=config.balance.ratio, every=config.balance.every, keep=config.balance.keep
        )
        self.goes_back_twice = config.balance.kind == "gradient"
        if config.padding == "reflect":
            self.train()
            _check_reflects(self.encoder, min(spec.size for spec in self.views()))
        self.beta: Tensor
        # A tensor, which captured steps read anew; it follows from the step, so no file has it.
        self.register_buffer("beta", torch.tensor(config.whole.beta), persistent=False)

    def train(self, mode: bool = True) -> Self:
        """Follow the mode; where nothing is trained, zeros lie beyond the edge as in an export."""
        super().train(mode)
        if self.config.padding == "reflect":
            for encoder in self.encoders():
                set_padding(encoder, "reflect" if mode else "zeros")
        return self

    @property
    def joins_views(self) -> bool:
        """As the config says."""
        return self.config.joint_views

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """Predictors, losses on cells, and the expander."""
        return *self.attentions.values(), *self.cell_losses.values(), self.whole_head

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        check_spreads(len(batch.index))
        roles = views_by_role(batch)
        targets, students = self._encode_all(roles, progress)
        compared = {
            stage: terms.compare(
                targets.projected[stage], [each.projected[stage] for each in students], roles
            )
            for stage, terms in self._terms.items()
        }
        by_stage = {stage: mean_of_terms(parts) for stage, parts in compared.items()}
        cells = torch.stack(list(by_stage.values())).mean()
        whole, whole_metrics = self._whole_loss(students, roles)
        self._note(batch, targets, progress)
        # Before the two losses are added up: afterwards nobody could tell their gradients apart.
        if self.step_kind(progress):
            self.balance.note(cells, whole, students[0].first_maps)
        # Both factors are buffers, so no gradient tries to change them.
        loss = cells + self.beta * self.balance.ratio * whole
        metrics = {
            **self._metrics(cells, by_stage, compared),
            "loss_whole": whole.detach(),
            **whole_metrics,
            "balance": self.balance.ratio.clone(),
        }
        return StepOutput(loss, metrics, self._samples(students[0], len(batch.index)))

    def before_forward(self, progress: Progress) -> None:
        """Let the weight of the loss on whole images follow its schedule."""
        super().before_forward(progress)
        self.beta.fill_(beta_at(self.config.whole, progress))

    def after_step(self, progress: Progress) -> None:
        """Let the balance and queues move on."""
        super().after_step(progress)
        self.balance.update()
        for terms in self._terms.values():
            terms.enqueue()

    def why_not_captured(self) -> str:
        """Where the host decides something in every step."""
        return DRAWS_CELLS if any(terms.draws_cells for terms in self._terms.values()) else ""

    def step_kind(self, progress: Progress) -> bool:
        """Whether the balance is measured."""
        return self.training and self.goes_back_twice and self.balance.wants(progress.step)

    def left_by_forward(self) -> list[list[Tensor]]:
        """What was measured, and what the queues get."""
        return [self.balance.squares, *(terms.to_enqueue for terms in self._terms.values())]

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """As CLoVE's, of the last stage with a local loss, and how well cells know their place."""
        maps, attention = output.artifacts["attention_input"], self._deepest.attention
        with torch.no_grad():
            weights = attention.weights(maps.to(attention.out.weight.dtype))
        return {
            **super().health(output),
            "attention_entropy": health.attention_entropy(weights),
            **health.place_shares(output.artifacts["place_maps"]),
        }

    def attention_maps(self, images: Tensor) -> Tensor:
        """What each cell of the deepest stage takes from all cells, by head."""
        return self._deepest.attention.weight_maps(self.encoder.embeddings(images))

    @property
    def _deepest(self) -> CellTerms:
        return self._terms[self.encoder.stages[-1]]

    def _encode_all(
        self, roles: Sequence[Sequence[View]], progress: Progress
    ) -> tuple[EncodedStages, list[EncodedStages]]:
        """What cells of large views should become, and what the student makes of every role."""
        if not progress.prepared:
            self.before_forward(progress)
        students = [self._encode(self.encoder, views) for views in roles]
        return students[0].as_targets(), students

    def _encode(
        self, network: Callable[[Tensor], Sequence[Tensor]], views: Sequence[View]
    ) -> EncodedStages:
        """Run ``network`` on views of one size."""
        parts = [network(images) for images in self.passes(views)]
        *projected, first_maps, last_maps = (list(each) for each in zip(*parts, strict=True))
        joined = {
            stage: torch.cat(maps)
            for stage, maps in zip(self.encoder.stages, projected, strict=True)
        }
        return EncodedStages(joined, first_maps, last_maps)

    def _whole_loss(
        self, students: Sequence[EncodedStages], roles: Sequence[Sequence[View]]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss on whole images without its weight, and what explains it."""
        config = self.config.whole
        counts = [len(views) for views in roles][: None if config.small_views else 1]
        vectors: list[Tensor] = []
        for student, count in zip(students, counts, strict=False):
            # The expander's batch norms see the same company as the backbone's, whose norms may
            # tell views apart that pass together.
            passes = student.last_maps
            if not self.joins_views and len(passes) < count:
                passes = [view for maps in passes for view in maps.chunk(count // len(passes))]
            rows = torch.cat([self.whole_head(maps) for maps in passes])  # (V * B, D)
            vectors += rows.chunk(count)
        pairs = pairs_with_large(counts[0], sum(counts[1:]))
        alike = None
        if config.flips == "alike":
            views = [view for role in roles for view in role]
            alike = counts_of_pairs(views, pairs, self.config.views)
        gather = gather_with_gradient
        if config.kind == "infonce":
            heat = config.temperature
            loss = contrast_images(vectors, pairs, temperature=heat, gather=gather, counts=alike)
            return loss, {}
        terms = global_terms(
            vectors, pairs, weights=config, gather=gather, counts=alike, chance=config.chance
        )
        return terms.total(), term_metrics("whole", terms)

    def _note(self, batch: ViewBatch, targets: EncodedStages, progress: Progress) -> None:
        """Keep what the queues get."""
        if self.training:
            for stage, terms in self._terms.items():
                terms.collect_negatives(targets.projected[stage], batch.index, progress.step)

    def _metrics(
        self,
        cells: Tensor,
        by_stage: Mapping[str, Tensor],
        compared: Mapping[str, Sequence[Comparison]],
    ) -> dict[str, Tensor]:
        """Metrics of the last stage with a local loss, as CLoVE's, and some of every stage."""
        metrics = {"loss_cells": cells.detach()}
        for stage, parts in compared.items():
            own = health.match_metrics([part.cells for part in parts])
            metrics[f"loss_cells_{stage}"] = by_stage[stage].detach()
            for name in ("cos_positive", "cos_negative"):
                if name in own:
                    metrics[f"{name}_cells_{stage}"] = own[name]
            if stage == self.encoder.stages[-1]:
                metrics |= own
        return metrics

    def _samples(self, large: EncodedStages, images: int) -> dict[str, Tensor]:
        """What health metrics look at, all of the first large view."""
        projected = large.projected[self.encoder.stages[-1]].detach()[:images]
        return {
            "embeddings": health.embedding_rows(projected),
            "attention_input": projected[:HEALTH_MAPS],
            "place_maps": large.last_maps[0].detach()[: min(images, health.PLACE_IMAGES)],
        }


class TaughtCLoVEPlus(CLoVEPlus, TeacherStudentMethod[StagesEncoder]):
    """The same with targets of a teacher, as CLoVE has them."""

    def _encode_all(
        self, roles: Sequence[Sequence[View]], progress: Progress
    ) -> tuple[EncodedStages, list[EncodedStages]]:
        """Targets by the teacher, which sees large views only."""
        self.before_targets(progress)
        # First: its maps are gone before the student's pile up.
        targets = self._encode(self.teacher, roles[0])
        return targets, [self._encode(self.encoder, views) for views in roles]


def set_padding(network: nn.Module, how: Literal["zeros", "reflect"]) -> None:
    """Let every convolution continue its input by zeros, or by a mirror image.

    Zeros tell a network where the edge is, and so where in the view it looks. Weights fit
    both kinds, so what is exported runs with zeros again.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and any(module.padding):
            module.padding_mode = how


@torch.no_grad()
def _check_reflects(encoder: StagesEncoder, side: int) -> None:
    """Refuse views of so few pixels that some map is smaller than what is to be mirrored of it."""
    images = next(encoder.parameters()).new_zeros(1, 3, side, side)
    training = encoder.training
    encoder.eval()  # a pass in train mode would move the batch-norm statistics
    try:
        encoder(images)
    except RuntimeError:  # torch's word for an edge without enough pixels beside it
        raise UserError(
            f"method.padding is reflect, but in views of {side} pixels some maps of the network "
            "are too small to be continued by their mirror image. Give larger "
            "--method.views.local-size and --method.views.global-size, or leave out "
            "--method.padding."
        ) from None
    encoder.train(training)


def beta_at(config: WholeConfig, progress: Progress) -> float:
    """The weight of the loss on whole images in a step, besides the balance."""
    if config.schedule == "constant":
        return config.beta
    schedule = linear if config.schedule == "linear" else cosine
    return schedule(config.beta, config.final_beta, progress.total_steps)(progress.step)


def _check_stages(stages: Sequence[str], backbone: Backbone) -> None:
    beyond = [stage for stage in stages if STAGES.index(stage) > STAGES.index(backbone.stage)]
    if beyond:
        raise UserError(
            f"method.stages asks for a loss at {' and '.join(beyond)}, but backbone.stage is "
            f"{backbone.stage}, so later stages do not run. Leave out --backbone.stage, or give "
            f"--method.stages {backbone.stage}."
        )
