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
        loss = (self._predict(a, b, first, second) + self._predict(b, a, second, first)) / 2
        rows = a.detach().flatten(2).mT.flatten(0, 1)[:4096]
        return StepOutput(loss, {"cos_positive": -loss.detach() / 2}, {"embeddings": rows})

    def health(self, output: StepOutput) -> dict[str, Tensor]:
        rows = output.artifacts["embeddings"]
        return {
            "feature_std": health.feature_std(rows),
            "effective_rank": health.effective_rank(rows),
        }

    def _predict(self, a: Tensor, b: Tensor, here: Tensor, there: Tensor) -> Tensor:
        """(B, D, h, w) maps and their boxes (B, 4) -> scalar."""
        grid = (a.shape[2], a.shape[3])
        matches = match_cells(here, there, grid, grid, self.config.threshold)
        guess = unit_vectors(self.predictor(a), dim=1)
        return matched_cosine_loss(guess, unit_vectors(b.detach(), dim=1), matches)
