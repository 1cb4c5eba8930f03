"""BYOL: predict the teacher's embedding of one view from the student's of the other.

There are no negatives. The predictor, which the teacher lacks, and the slow
teacher keep all embeddings from becoming equal. Both directions count.

Dimensions: B images, D channels; rows of both views stand one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.fp32 import all_at_least_fp32
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.byol.config import BYOLConfig
from clove_ssl.methods.heads import MLPHead
from clove_ssl.methods.teacher_student import PooledEncoder, TeacherStudentMethod
from clove_ssl.methods.two_views import swap_views
from clove_ssl.views.batch import ViewBatch


class BYOL(TeacherStudentMethod[PooledEncoder]):
    """Bootstrap your own latent (Grill et al., 2020)."""

    headline = ("cos_positive",)

    def __init__(self, config: BYOLConfig, backbone: Backbone) -> None:
        width = config.projector.out
        head = MLPHead(backbone.out_channels, config.projector.hidden, width, norm=True)
        super().__init__(config, PooledEncoder(backbone, head))
        self.config = config
        self.predictor = MLPHead(width, config.predictor_hidden, width, norm=True)

    @property
    def joins_views(self) -> bool:
        """As the config says."""
        return self.config.joint_views

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """The predictor."""
        return (self.predictor,)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        self.before_targets(progress)
        targets = unit_vectors(self.by_view(self.teacher, batch.views))  # (2 * B, D)
        embedded = self.by_view(self.encoder, batch.views)
        predicted = unit_vectors(self._predict(embedded))
        mean = prediction_loss(predicted, swap_views(targets))
        # The paper adds up both directions, the released code averages them.
        loss = 2 * mean if self.config.form == "paper" else mean
        samples = {"embeddings": embedded.detach()[: len(batch.index)]}  # the first view
        return StepOutput(loss, {"cos_positive": 1 - mean.detach() / 2}, samples)

    def _predict(self, embedded: Tensor) -> Tensor:
        """(2 * B, D) -> (2 * B, D), by statistics of both views or of each."""
        parts = embedded.chunk(1 if self.joins_views else 2)
        return torch.cat([self.predictor(rows) for rows in parts])


def prediction_cosines(prediction: Tensor, target: Tensor) -> Tensor:
    """Cosine of every (N, D) row with its target: (N,), unit vectors in, fp32 or better out."""
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction {tuple(prediction.shape)} and target {tuple(target.shape)} must be alike"
        )
    prediction, target = all_at_least_fp32(prediction, target)
    return (prediction * target).sum(-1)


def prediction_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """2 - 2 cos, averaged over rows: the squared distance of unit vectors."""
    return 2 - 2 * prediction_cosines(prediction, target).mean()
