"""What methods on two views of an image share: their order and their places.

The views stand one after the other along the batch.

Dimensions: B images, D channels, h x w cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.methods.config import MatchingConfig
from clove_ssl.views.batch import ViewBatch
from clove_ssl.views.geometry import match_cells


def swap_views(joined: Tensor) -> Tensor:
    """Put the other view beside each one: (2 * B, ...) -> (2 * B, ...)."""
    return joined.roll(len(joined) // 2, dims=0)


def match_both_ways(batch: ViewBatch, grid: tuple[int, int], config: MatchingConfig) -> Tensor:
    """Matches of the first view in the second, then the reverse: (2 * B, h*w, h*w) bool."""
    boxes = [view.geometry.signed_boxes(config.coordinates) for view in batch.views]
    here = torch.cat(boxes).to(batch.views[0].pixels.device)  # (2 * B, 4)
    return match_cells(here, swap_views(here), grid, grid, config.threshold, unit=config.unit)
