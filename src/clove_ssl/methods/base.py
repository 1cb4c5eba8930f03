"""What the engine asks of a method, and what a method gives back.

A method knows views, networks and losses. It knows nothing of optimizers,
loggers, ranks or files; whatever must survive a restart is a parameter or a
buffer, so that its state dict is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.bases import Branch
from clove_ssl.config.views import ViewSpec
from clove_ssl.views.batch import ViewBatch

if TYPE_CHECKING:
    from clove_ssl.methods.teacher_student import BackboneEncoder


@dataclass(frozen=True)
class Progress:
    """Where a run stands. Schedules are functions of this and keep no state."""

    step: int  # optimizer steps done before this one
    total_steps: int
    closes_step: bool = True  # the optimizer steps right after this micro-batch
    prepared: bool = False  # ``before_forward`` was called already


@dataclass(frozen=True)
class StepOutput:
    """The loss of a micro-batch and what explains it, all still on the device."""

    loss: Tensor  # scalar
    metrics: dict[str, Tensor] = field(default_factory=dict)  # scalars
    artifacts: dict[str, Tensor] = field(default_factory=dict)  # detached maps, for health metrics


class Learner(nn.Module):
    """Anything the training loop can train."""

    headline: tuple[str, ...] = ()
    """Metrics worth a place on the progress line, besides the loss."""

    def before_forward(self, progress: Progress) -> None:
        """What a micro-batch begins with, if it is more than its forward pass.

        The forward pass calls this itself, unless ``progress`` says that it was done.
        """

    def after_step(self, progress: Progress) -> None:
        """Called once per optimizer step, right after it."""

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Metrics that tell whether it learns; asked for at logged steps only."""
        return {}


class Method(Learner):
    """A pre-training method: what it looks at, what it learns from that, and what is kept.

    It may also be :class:`~clove_ssl.methods.compiled.Compilable` and
    :class:`~clove_ssl.methods.compiled.Capturable`.
    """

    backbone: Backbone

    def views(self) -> tuple[ViewSpec, ...]:
        """The views of one image, in the order of ``ViewBatch.views``."""
        raise NotImplementedError

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        raise NotImplementedError

    def export_backbone(self, branch: Branch | None = None) -> Backbone:
        """The backbone of a branch, by default of the one that a user takes away."""
        return self.backbone

    def export_encoder(self, branch: Branch | None = None) -> BackboneEncoder | None:
        """That backbone with the heads of pre-training, where they are one network."""
        return None

    def attention_maps(self, images: Tensor) -> Tensor:
        """What each cell takes from all cells, by head: (B, 3, H, W) -> (B, heads, h, w, h, w).

        Asked for where the config says ``has_attention``.
        """
        raise NotImplementedError
