"""Attract matching cells and do nothing else: the l2 loss of PixPro and of CLoVE's ablation.

Dimensions: B images, D channels, Q query cells, K key cells.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from clove_ssl.losses.cells import (
    CellLoss,
    check_shapes,
    flatten_cells,
    images_in_mean,
    mean_over_pairs,
    share_without_match,
)


def matched_cosine_loss(
    context: Tensor,  # (B, D, h, w) student, unit vectors
    target: Tensor,  # (B, D, h', w') teacher, unit vectors
    matches: Tensor,  # (B, h*w, h'*w') bool
    *,
    unmatched_images: Literal["keep", "skip"] = "keep",
) -> Tensor:
    """Minus twice the mean cosine of the matching pairs of an image, averaged over images.

    Up to a constant this is the mean squared distance of the unit vectors. An
    image without a pair adds 0 to the mean, or is left out of it (``skip``).
    """
    result = attract_cells(context, target, matches, unmatched_images=unmatched_images)
    return result.term_losses().squeeze(0)


def attract_cells(
    context: Tensor,
    target: Tensor,
    matches: Tensor,
    *,
    unmatched_images: Literal["keep", "skip"] = "keep",
) -> CellLoss:
    """What :func:`matched_cosine_loss` averages, image by image."""
    check_shapes(context, target, matches)
    matches = matches.bool()
    with torch.autocast(context.device.type, enabled=False):
        cosines = flatten_cells(context) @ flatten_cells(target).mT  # (B, Q, K)
        positive = mean_over_pairs(cosines, matches)  # (B,)
        return CellLoss(
            loss=-2 * positive,
            counted=images_in_mean(matches, skip_unmatched=unmatched_images == "skip"),
            pairs=matches.sum((1, 2)),
            positive_cosine=positive.detach(),
            unmatched_cells=share_without_match(matches),
        )
