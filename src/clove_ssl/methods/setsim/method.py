"""SetSim: contrast whole images, and cells with sets of cells.

Networks, queues and the loss between images are DenseCL's. A cell's positives
are a set: cells that stand out in both views and look alike, and cells that
show the same place. Its negatives are earlier images.

Dimensions: B images, C channels of the backbone, L = h * w cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.backbones.build import Backbone
from clove_ssl.layers.normalization import unit_vectors
from clove_ssl.methods import health
from clove_ssl.methods.densecl.method import DenseCL, DenseTerm, Embedded
from clove_ssl.methods.setsim.config import SetSimConfig
from clove_ssl.methods.setsim.loss import attention_pairs, cell_cosines, contrast_sets, with_nearest
from clove_ssl.methods.two_views import match_both_ways
from clove_ssl.views.batch import ViewBatch


class SetSim(DenseCL):
    """Exploring set similarity for dense self-supervised learning (Wang et al., 2022)."""

    def __init__(self, config: SetSimConfig, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        self.options = config

    def compare_cells(self, query: Embedded, key: Embedded, batch: ViewBatch) -> DenseTerm:
        """Contrast every cell with its set."""
        pairs = self.positive_sets(query.feature_map, key.feature_map, batch)  # (B, L, L)
        result = contrast_sets(
            unit_vectors(query.cells),
            unit_vectors(key.cells),
            pairs,
            self.dense_queue.entries,
            temperature=self.options.temperature,
            unmatched_images=self.options.unmatched_images,
        )
        metrics = health.match_metrics([result])
        metrics["cos_positive_dense"] = metrics["cos_positive"]
        skips = self.options.unmatched_images == "skip"
        return DenseTerm(result.term_losses(skips=skips).squeeze(0), metrics)

    def positive_sets(self, query_map: Tensor, key_map: Tensor, batch: ViewBatch) -> Tensor:
        """For every cell of the first view its set in the second: (B, L, L) bool."""
        sets, images = self.options.sets, len(query_map)
        grid = (query_map.shape[2], query_map.shape[3])
        cosines = cell_cosines(query_map, key_map)  # (B, L, L)
        pairs = torch.zeros_like(cosines, dtype=torch.bool)
        if sets.kind != "geometry":
            pairs = attention_pairs(
                query_map, key_map, cosines, attention=sets.attention, likeness=sets.likeness
            )
        if sets.kind != "attention":
            pairs = pairs | match_both_ways(batch, grid, self.options.matching)[:images]
        return with_nearest(pairs, cosines, sets.nearest)
