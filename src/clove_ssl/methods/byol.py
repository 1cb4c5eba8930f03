"""BYOL: predict the teacher's embedding of one view from the student's of the other.

There are no negatives. The predictor, which the teacher lacks, and the slow
teacher keep all embeddings from becoming equal. Both directions count.

Dimensions: B images, D channels; rows of both views stand one after the other.
"""

from __future__ import annotations

import torch
from torch import nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.methods.byol import BYOLConfig
from clove_ssl.losses.prediction import prediction_loss
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.teaching import PooledEncoder, TaughtMethod
from clove_ssl.methods.two_views import swap_views
from clove_ssl.modules.heads import MLPHead
from clove_ssl.modules.normalization import unit_vectors
from clove_ssl.views.batch import ViewBatch, joined_pixels


class BYOL(TaughtMethod[PooledEncoder]):
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

    def tail(self) -> tuple[nn.Module, ...]:
        """The predictor."""
        return (self.predictor,)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        passes = [view.pixels for view in batch.views]
        if self.config.joint_views:
            passes = [joined_pixels(batch.views)]
        self.before_targets(progress)
        targets = unit_vectors(torch.cat([self.teacher(images) for images in passes]))  # (2 * B, D)
        embedded = [self.encoder(images) for images in passes]
        predicted = unit_vectors(torch.cat([self.predictor(rows) for rows in embedded]))
        mean = prediction_loss(predicted, swap_views(targets))
        loss = 2 * mean if self.config.form == "paper" else mean
        samples = {"embeddings": embedded[0].detach()[: len(batch.index)]}  # the first view
        return StepOutput(loss, {"cos_positive": 1 - mean.detach() / 2}, samples)
