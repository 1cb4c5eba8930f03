"""Cosines between the cells of two feature maps, and what a dense loss says about them.

Every loss on matched cells gets two maps and a match mask, never a crop, and
answers with one number per image. Several pairs of views are compared in one
call by putting them one after the other along the batch.

All arithmetic is in fp32 (or float64 when given float64), also under autocast:
a loss that lies near 100 has a resolution of 0.5 in bf16.

Dimensions: B images, D channels, Q query cells (student), K key cells (teacher).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from clove_ssl.layers.collectives import mean_count
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.contrastive import mean_of_sum


class CellLoss(NamedTuple):
    """The loss of every image, and the metrics that explain it."""

    loss: Tensor  # (B,)
    counted: Tensor  # (B,) bool, images that enter the mean
    pairs: Tensor  # (B,) matching pairs of cells
    positive_cosine: Tensor  # (B,) mean over the pairs, 0 without one
    unmatched_cells: Tensor  # (B,) share of query cells without a match
    negative_cosine: Tensor | None = None  # (B,) mean over the queries with a negative
    short_cells: Tensor | None = None  # (B,) share of query cells with too few negatives

    def term_losses(self, terms: int = 1, *, skips: bool = False) -> Tensor:
        """Means over the images of each pair of views: (terms,).

        With ``skips`` processes may count different numbers of images, all of which weigh alike.
        """
        loss = (self.loss * self.counted).reshape(terms, -1)  # (terms, B / terms)
        images = self.counted.reshape(terms, -1).sum(1)  # (terms,)
        if skips:
            images = mean_count(images)
        return mean_of_sum(loss.sum(1), images)


def flatten_cells(feature_map: Tensor) -> Tensor:
    """(B, D, h, w) -> (B, h*w, D), in fp32 or better."""
    return at_least_fp32(feature_map.flatten(2).mT)


def check_shapes(context: Tensor, target: Tensor, matches: Tensor) -> None:
    """Refuse maps and masks that do not belong together, before a product hides it."""
    if context.ndim != 4 or target.ndim != 4 or context.shape[:2] != target.shape[:2]:
        raise ValueError(
            f"context {tuple(context.shape)} and target {tuple(target.shape)} must be "
            "(B, D, h, w) maps with the same B and D"
        )
    expected = (len(context), context.shape[2:].numel(), target.shape[2:].numel())
    if matches.shape != expected:
        raise ValueError(f"matches has shape {tuple(matches.shape)}, the maps need {expected}")


def mean_over_pairs(cosines: Tensor, matches: Tensor) -> Tensor:
    """Mean of the (B, Q, K) cosines over the matching pairs of each image: (B,).

    An image without a pair gives 0. The guard of the division is added to an
    fp32 count, as in the released code, where larger counts swallow it.
    """
    # A mean per image first: over all pairs of a batch, images with much overlap would dominate.
    pairs = matches.sum((1, 2)).to(torch.float32)  # (B,)
    return (cosines * matches).sum((1, 2)) / (pairs + 1e-6)


def mean_where(values: Tensor, mask: Tensor, dims: int | tuple[int, ...]) -> Tensor:
    """Mean of values over ``dims`` where the mask holds; 0 where it never does."""
    return (values * mask).sum(dims) / mask.sum(dims).clamp(min=1)


def share_without_match(matches: Tensor) -> Tensor:
    """Share of query cells that match no key cell: (B,) fp32."""
    return (~matches.any(2)).float().mean(1)


def images_in_mean(matches: Tensor, *, skip_unmatched: bool) -> Tensor:
    """Which images a batch mean is taken over: (B,) bool."""
    matched = matches.any(2).any(1)
    return matched if skip_unmatched else torch.ones_like(matched)


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
