"""What methods with one network share, and those with a slow teacher beside it.

Dimensions: B images, C channels of the backbone, D of an embedding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.bases import Branch
from clove_ssl.config.views import ViewSpec
from clove_ssl.layers.view_norm import normalize_by_view
from clove_ssl.methods import health
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.compiled import Capturable, Compilable, EncoderInputs
from clove_ssl.methods.config import TeacherConfig
from clove_ssl.methods.contrastive import Contrast
from clove_ssl.schedules import cosine
from clove_ssl.views.batch import View, ViewBatch, joined_pixels


class StudentConfig(Protocol):
    """What the config of a method with one network has."""

    def view_specs(self) -> tuple[ViewSpec, ...]: ...


class TeacherStudentConfig(StudentConfig, Protocol):
    """What the config of a method with a teacher has."""

    @property
    def teacher(self) -> TeacherConfig: ...

    @property
    def export(self) -> Branch: ...


class BackboneEncoder(nn.Module):
    """A network around a backbone, such as student and teacher."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def embeddings(self, images: Tensor) -> Any:
        """(B, 3, H, W) -> a tensor, or a named tuple of tensors; here what the forward pass gives.

        Networks whose heads wait outside of that pass add them.
        """
        return self(images)


class PooledEncoder(BackboneEncoder):
    """Pixels to one embedding per image."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__(backbone)
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D)."""
        embedded: Tensor = self.head(self.backbone.features(images).mean((2, 3)))
        return embedded


class MapEncoder(BackboneEncoder):
    """Pixels to one embedding per cell."""

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__(backbone)
        self.projector = projector

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D, h, w)."""
        projected: Tensor = self.projector(self.backbone.features(images))
        return projected


Encoder = TypeVar("Encoder", bound=BackboneEncoder)


class StudentMethod(Method, Compilable, Capturable, Generic[Encoder]):
    """A network that learns, how views go through it, and how it is watched."""

    def __init__(self, config: StudentConfig, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self._view_specs = config.view_specs()
        self._normalizes_by_view = False

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        """The student's backbone; a second registration would double the state dict."""
        return self.encoder.backbone

    @property
    def joins_views(self) -> bool:
        """Whether views of one size are normalised together, with common batch statistics."""
        return True

    @property
    def passes_together(self) -> bool:
        """Whether views of one size go through a network at once, however they are normalised."""
        return self.joins_views or self._normalizes_by_view

    def passes(self, views: Sequence[View]) -> list[Tensor]:
        """What goes through a network at once, of views of one size."""
        return [joined_pixels(views)] if self.passes_together else [view.pixels for view in views]

    def by_view(self, network: Callable[[Tensor], Tensor], views: Sequence[View]) -> Tensor:
        """Run ``network`` on views of one size: (V * B, ...), one view after the other."""
        return torch.cat([network(images) for images in self.passes(views)])

    def views(self) -> tuple[ViewSpec, ...]:
        """The views of one image."""
        return self._view_specs

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Spread and rank of the embeddings."""
        rows = output.artifacts["embeddings"]
        return {
            "feature_std": health.feature_std(rows),
            "effective_rank": health.effective_rank(rows),
        }

    def branch(self, name: Branch | None = None) -> Encoder:
        """The network that a user takes away."""
        return self.encoder

    def export_backbone(self, branch: Branch | None = None) -> Backbone:
        """The backbone of a branch."""
        return self.branch(branch).backbone

    def export_encoder(self, branch: Branch | None = None) -> Encoder:
        """The whole encoder of a branch."""
        return self.branch(branch)

    def encoders(self) -> tuple[nn.Module, ...]:
        """The student's."""
        return (self.encoder,)

    def before_compilation(self) -> None:
        """Let both views pass together: kernels become fewer and larger, results stay the same."""
        if not self.passes_together and len(self.views()) == 2:
            self._normalizes_by_view = normalize_by_view(*self.encoders(), views=2)

    def encoder_inputs(self, batch: ViewBatch) -> EncoderInputs:
        """All views go through the student."""
        large = self.passes([view for view in batch.views if view.role == "global"])
        small = [view for view in batch.views if view.role == "local"]
        return EncoderInputs([*large, *(self.passes(small) if small else [])], [])


class TeacherStudentMethod(StudentMethod[Encoder]):
    """A student, and a teacher that is its moving average."""

    def __init__(self, config: TeacherStudentConfig, encoder: Encoder) -> None:
        super().__init__(config, encoder)
        self.teacher = Teacher(encoder, mode=config.teacher.mode)
        self._options = config

    def before_targets(self, progress: Progress) -> None:
        """To be called before the teacher's forward pass of a micro-batch.

        That pass comes before the student's: what it needs is free again before the maps that the
        student keeps for its backward pass pile up.
        """
        if not progress.prepared:
            self.before_forward(progress)

    def before_forward(self, progress: Progress) -> None:
        """Follow the student, where it is done here."""
        # Once per optimizer step, in its last micro-batch: as in the released code, with the
        # weights that the last step left.
        if progress.closes_step and self._options.teacher.update == "before-forward":
            self.update_teacher(progress)

    def after_step(self, progress: Progress) -> None:
        """Follow the student, where it is done here."""
        super().after_step(progress)
        if self._options.teacher.update == "after-step":
            self.update_teacher(progress)

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Spread and rank of the embeddings, lag of the teacher."""
        lag = health.parameter_distance(self.encoder.parameters(), self.teacher.module.parameters())
        return {**super().health(output), "teacher_distance": lag}

    def branch(self, name: Branch | None = None) -> Encoder:
        """The student or the teacher, by default the one that a user takes away."""
        return self.teacher.module if (name or self._options.export) == "teacher" else self.encoder

    def teacher_momentum(self, progress: Progress) -> float:
        """How much of the teacher a step keeps."""
        return teacher_momentum(self._options.teacher, progress)

    def update_teacher(self, progress: Progress) -> None:
        """Let the teacher follow the student by one step."""
        if self.training:
            self.teacher.update(self.encoder, self.teacher_momentum(progress))

    def encoders(self) -> tuple[nn.Module, ...]:
        """The student's and the teacher's."""
        return self.encoder, self.teacher.module

    def encoder_inputs(self, batch: ViewBatch) -> EncoderInputs:
        """All views go through the student, the large ones through the teacher, too."""
        large = self.passes([view for view in batch.views if view.role == "global"])
        return super().encoder_inputs(batch)._replace(teacher=large)


def teacher_momentum(config: TeacherConfig, progress: Progress) -> float:
    """The momentum of a step, on a cosine over the whole run."""
    return cosine(config.momentum, config.final_momentum, progress.total_steps)(progress.step)


def contrast_metrics(result: Contrast) -> dict[str, Tensor]:
    """What explains a contrastive loss: similarities, and how often the positive is found."""
    return {
        "cos_positive": result.positive_cosine.mean(),
        "cos_negative": result.negative_cosine.mean(),
        "accuracy": result.found.float().mean(),
    }


Student = TypeVar("Student", bound=nn.Module)


class Teacher(nn.Module, Generic[Student]):
    """A frozen copy of ``student`` that follows it slowly.

    Call :meth:`update` once per *optimizer* step; a call in every forward pass
    would be several under gradient accumulation. Weights stay in fp32: in bf16
    a step of one ten-thousandth is rounded away.

    Args:
        student: The module to copy.
        mode: ``train``: batch norm uses the statistics of the teacher's own batch, and running
            statistics come from those; ``eval``: it uses running statistics, which are
            averaged from the student's along with the weights.
    """

    def __init__(self, student: Student, *, mode: Literal["train", "eval"] = "train") -> None:
        super().__init__()
        self.mode = mode
        self.module: Student = copy.deepcopy(student)
        # Before a distributed wrapper sees it, which would otherwise wait for gradients that never
        # come.
        self.module.requires_grad_(False)
        # A teacher in eval mode from the start would use running statistics of mean 0 and variance
        # 1, which are those of nothing; hence ``train`` by default.
        self.train(self.training)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The student's forward pass, without a graph."""
        features: Tensor = self.module(images)
        return features

    def train(self, mode: bool = True) -> Self:
        """Follow the surrounding module, unless the teacher is always in eval mode."""
        super().train(mode)
        self.module.train(mode and self.mode == "train")
        return self

    @torch.no_grad()
    def update(self, student: nn.Module, momentum: float) -> None:
        """theta_t <- momentum * theta_t + (1 - momentum) * theta_s, in place."""
        mine, theirs = self._averaged(self.module), self._averaged(student)
        if [tensor.shape for tensor in mine] != [tensor.shape for tensor in theirs]:
            raise ValueError("the student does not have the shape it had when it was copied")
        if mine:
            # In place: rebinding ``data`` would leave captured graphs and optimizers with the old
            # tensors.
            torch._foreach_lerp_(mine, theirs, 1.0 - momentum)

    def _averaged(self, module: nn.Module) -> list[Tensor]:
        """Weights and, for a teacher in eval mode, running statistics; never counters."""
        tensors = [parameter.detach() for parameter in module.parameters()]
        if self.mode == "eval":
            # Not the counter of batches: it is an integer, which an average would set back to 0.
            tensors += [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        return tensors
