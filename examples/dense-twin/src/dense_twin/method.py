"""The dense twin: two views of an image, each predicts the matching cells of the other.

Dimensions: B images, D channels, h x w cells.
"""

from __future__ import annotations

from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.config.views import ViewSpec
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.losses import matched_cosine_loss
from clove_ssl.methods import health
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.heads import ConvProjector
from clove_ssl.views.batch import ViewBatch
from clove_ssl.views.geometry import match_cells
from dense_twin.config import DenseTwinConfig


class DenseTwin(Method):
    headline = ("cos_positive",)

    def __init__(self, config: DenseTwinConfig, backbone: Backbone) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        width = config.channels
        self.projector = ConvProjector(backbone.out_channels, width, width)
        self.predictor = ConvProjector(width, width, width, last_norm="none")

    def views(self) -> tuple[ViewSpec, ...]:
        return self.config.view_specs()

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        first, second = (view.geometry.signed_boxes("pixel") for view in batch.views)
        a, b = (self.projector(self.backbone.features(view.pixels)) for view in batch.views)
        grid = (a.shape[2], a.shape[3])
        matches = match_cells(first, second, grid, grid, self.config.threshold)  # (B, h*w, h*w)
        loss = (self._predict(a, b, matches) + self._predict(b, a, matches.mT)) / 2
        metrics = {
            "cos_positive": -loss.detach() / 2,
            "cells_matched": matches.any(2).float().mean(),
        }
        rows = a.detach().flatten(2).mT.flatten(0, 1)[:4096]
        return StepOutput(loss, metrics, {"embeddings": rows})

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        rows = output.artifacts["embeddings"]
        return {
            "feature_std": health.feature_std(rows),
            "effective_rank": health.effective_rank(rows),
        }

    def _predict(self, a: Tensor, b: Tensor, matches: Tensor) -> Tensor:
        """(B, D, h, w) maps and which of their cells belong together -> scalar."""
        guess = unit_vectors(self.predictor(a), dim=1)
        return matched_cosine_loss(guess, unit_vectors(b.detach(), dim=1), matches)
