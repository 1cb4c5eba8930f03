"""VICRegL: embeddings of images and of matched cells agree, spread out and do not repeat.

There is no teacher and no negative. One expander works on the mean of a map,
another on each of its cells. Cells are matched twice: with the nearest one in
feature space, and with the nearest one in the image. Each large view is
compared with every other view, large or small.

Dimensions: B images, V views, C channels of the backbone, D of an embedding, L = h * w cells.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.collectives import gather_with_gradient
from clove_ssl.methods import health
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.heads import build_expander
from clove_ssl.methods.teacher_student import BackboneEncoder, StudentMethod
from clove_ssl.methods.variance import VarianceTerms, check_spreads, global_terms, local_terms
from clove_ssl.methods.vicregl.config import VICRegLConfig
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import cell_centers

LARGE_VIEWS = 2


class Embeddings(NamedTuple):
    """What the encoder makes of images."""

    vectors: Tensor  # (B, D) of whole images
    cells: Tensor  # (B, h, w, D')


class Encoder(BackboneEncoder):
    """Backbone and expanders."""

    def __init__(self, backbone: Backbone, config: VICRegLConfig) -> None:
        super().__init__(backbone)
        self.expander = build_expander(backbone.out_channels, config.global_width)
        self.cell_expander = build_expander(backbone.out_channels, config.local_width)

    def forward(self, images: Tensor) -> Embeddings:
        """Expand the last map of (B, 3, H, W) images."""
        maps = self.backbone.features(images)  # (B, C, h, w)
        cells = maps.permute(0, 2, 3, 1)  # (B, h, w, C)
        expanded: Tensor = self.cell_expander(cells.flatten(0, 2))  # (B * L, D')
        return Embeddings(self.expander(maps.mean((2, 3))), expanded.reshape(*cells.shape[:3], -1))


class VICRegL(StudentMethod[Encoder]):
    """Self-supervised learning of local visual features (Bardes et al., 2022)."""

    headline = ("loss_global", "loss_local")

    def __init__(self, config: VICRegLConfig, backbone: Backbone) -> None:
        super().__init__(config, Encoder(backbone, config))
        self.config = config

    def forward(self, batch: ViewBatch, progress: Progress) -> StepOutput:
        """Loss of a micro-batch."""
        check_spreads(len(batch.index))
        # Views pass one by one, each with batch statistics of its own.
        embeddings = [self.encoder(view.pixels) for view in batch.views]
        pairs = pairs_of(len(embeddings))
        cells = [each.cells.flatten(1, 2) for each in embeddings]  # (B, L, D') each
        grids = [(each.cells.shape[1], each.cells.shape[2]) for each in embeddings]
        whole = global_terms(
            [each.vectors for each in embeddings],
            pairs,
            weights=self.config.loss,
            gather=gather_with_gradient,
        )
        local = local_terms(
            cells,
            [self._places(*each) for each in zip(batch.views, grids, strict=True)],
            pairs,
            matches=self.config.matches,
            weights=self.config.loss,
            gather=gather_with_gradient,
        )
        alpha = self.config.loss.alpha
        loss = alpha * whole.total() + (1 - alpha) * local.total()
        metrics = {**term_metrics("global", whole), **term_metrics("local", local)}
        rows = cells[0].detach().flatten(0, 1)[: health.MOST_ROWS]
        return StepOutput(loss, metrics, {"embeddings": rows})

    def _places(self, view: View, grid: tuple[int, int]) -> Tensor:
        """Centres of a view's cells in the image: (B, L, 2)."""
        geometry = view.geometry
        # The released program leaves its grid as it is where a view was mirrored: half of the
        # places are then those of the other side.
        boxes = geometry.signed_boxes("pixel") if self.config.mirror_grid else geometry.boxes
        return cell_centers(boxes.to(view.pixels.device), grid)


def pairs_of(views: int) -> list[tuple[int, int]]:
    """Each large view with every other; the first of a pair has the first number of matches."""
    return [(i, j) for i in range(LARGE_VIEWS) for j in range(views) if i != j]


def term_metrics(name: str, terms: VarianceTerms) -> dict[str, Tensor]:
    """The weighted terms of one part of the loss, and their sum."""
    metrics = {f"{term}_{name}": value.detach() for term, value in terms._asdict().items()}
    return {f"loss_{name}": terms.total().detach(), **metrics}
