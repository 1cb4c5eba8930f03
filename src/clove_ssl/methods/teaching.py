"""What methods with a slow teacher on two views share: who follows whom, and how it is watched.

Dimensions: B images, C channels of the backbone, D of an embedding.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.methods.pooled_views import PooledViewsConfig
from clove_ssl.config.views import ViewSpec
from clove_ssl.losses.contrastive import Contrast
from clove_ssl.methods import health
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.two_views import teacher_momentum
from clove_ssl.modules.teacher import Teacher


class BackboneEncoder(nn.Module):
    """A network around a backbone, of which there are two: student and teacher."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone


class PooledEncoder(BackboneEncoder):
    """Pixels to one embedding per image."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__(backbone)
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D)."""
        embedded: Tensor = self.head(self.backbone.features(images).mean((2, 3)))
        return embedded


Encoder = TypeVar("Encoder", bound=BackboneEncoder)


class TaughtMethod(Method, Generic[Encoder]):
    """A student, and a teacher that is its moving average."""

    def __init__(self, config: PooledViewsConfig, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.teacher = Teacher(encoder, mode=config.teacher.mode)
        self._common = config

    @property
    def backbone(self) -> Backbone:  # type: ignore[override]
        """The student's backbone; a second registration would double the state dict."""
        return self.encoder.backbone

    def views(self) -> tuple[ViewSpec, ...]:
        """The two views of one image."""
        return self._common.view_specs()

    def networks(self) -> tuple[nn.Module, ...]:
        """Student and teacher encoders."""
        return self.encoder, self.teacher.module

    def before_targets(self, progress: Progress) -> None:
        """To be called between the student's and the teacher's forward pass."""
        if progress.closes_step and self._common.teacher.update == "before-forward":
            self._follow_student(progress)

    def after_step(self, progress: Progress) -> None:
        """Follow the student, where it is done here."""
        if self._common.teacher.update == "after-step":
            self._follow_student(progress)

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Spread and rank of the embeddings, lag of the teacher."""
        rows = output.artifacts["embeddings"]
        return {
            "feature_std": health.feature_std(rows),
            "effective_rank": health.effective_rank(rows),
            "teacher_distance": health.parameter_distance(
                self.encoder.parameters(), self.teacher.module.parameters()
            ),
        }

    def export_backbone(self) -> Backbone:
        """The student's or the teacher's backbone."""
        encoder = self.encoder if self._common.export == "student" else self.teacher.module
        return encoder.backbone

    def _follow_student(self, progress: Progress) -> None:
        if self.training:
            momentum = teacher_momentum(self._common.teacher, progress)
            self.teacher.update(self.encoder, momentum)


def contrast_figures(result: Contrast) -> dict[str, Tensor]:
    """What explains a contrastive loss: similarities, and how often the positive is found."""
    return {
        "cos_positive": result.positive_cosine.mean(),
        "cos_negative": result.negative_cosine.mean(),
        "accuracy": result.found.float().mean(),
    }
