"""MoCo v2: recognise another view of an image among the keys of earlier images.

The first view is the query, the second the key; the reverse is not computed.
Keys come from the teacher, in shuffled groups (``methods/shuffling.py``), and
enter the queue when the step is done.

Dimensions: B images, D channels.
"""

from __future__ import annotations

from clove_ssl.backbones.build import Backbone
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.heads import MLPHead
from clove_ssl.methods.moco.config import MoCoConfig
from clove_ssl.methods.queue import KeyBank
from clove_ssl.methods.queued import QueuedMethod
from clove_ssl.methods.teacher_student import PooledEncoder, contrast_metrics
from clove_ssl.views.batch import ViewBatch


class MoCo(QueuedMethod[PooledEncoder]):
    """Momentum contrast, version 2 (Chen et al., 2020)."""

    headline = ("accuracy", "cos_positive")

    def __init__(self, config: MoCoConfig, backbone: Backbone) -> None:
        head = MLPHead(backbone.out_channels, config.head.hidden, config.head.out)
        super().__init__(config, PooledEncoder(backbone, head))
        self.config = config
        self.queue = KeyBank(config.queue_size, config.head.out)

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        first, second = batch.views
        self.before_targets(progress)
        keys = self.keys_of(second.pixels)  # (B, D)
        embedded = self.encoder(first.pixels)  # (B, D)
        result = self.contrast_with_queue(
            embedded, keys, self.queue, temperature=self.config.temperature
        )
        samples = {"embeddings": embedded.detach()}
        return StepOutput(result.loss.mean(), contrast_metrics(result), samples)
