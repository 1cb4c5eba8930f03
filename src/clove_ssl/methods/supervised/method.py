"""Supervised training: name the class of a random crop.

The classifier is a single linear layer on the averaged map; only the backbone
is exported.

Dimensions: B images, C channels of the backbone, K classes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.views import ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods import health
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.compiled import Capturable, Compilable
from clove_ssl.methods.supervised.config import SupervisedConfig
from clove_ssl.views.batch import ViewBatch


class Supervised(Method, Compilable, Capturable):
    """Cross entropy on class labels."""

    headline = ("accuracy",)

    def __init__(self, config: SupervisedConfig, backbone: Backbone) -> None:
        super().__init__()
        if config.classes is None or config.classes < 2:
            raise UserError(
                f"method.classes is {config.classes}; a classifier needs at least 2 classes. Give "
                "--data a folder with one folder per class."
            )
        self.config = config
        self.backbone = backbone
        self.classifier = nn.Linear(backbone.out_channels, config.classes)

    def views(self) -> tuple[ViewSpec, ...]:
        """One large view."""
        return self.config.view_specs()

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        assert batch.labels is not None  # the config says that it needs them
        pooled = self.backbone.features(batch.views[0].pixels).mean((2, 3))  # (B, C)
        logits: Tensor = self.classifier(pooled)  # (B, K)
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=self.config.label_smoothing)
        found = logits.detach().argmax(1) == batch.labels
        return StepOutput(loss, {"accuracy": found.float().mean()}, {"logits": logits.detach()})

    def encoders(self) -> tuple[nn.Module, ...]:
        """The backbone."""
        return (self.backbone,)

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        """Spread of the logits: a classifier that has given up says the same about all images."""
        return {"feature_std": health.feature_std(output.artifacts["logits"])}
