"""InfoNCE between cells: tell the cells of one's own place from all others.

    loss of a pair = -log( e^(q.p / t) / (e^(q.p / t) + sum over n of e^(q.n / t)) )

The negatives of a query are the cells of the other view that it does not
match, or the rows of a bank. An image's loss is the mean over its pairs.

Dimensions: B images, D channels, Q query cells, K key cells, N bank rows.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.methods.cells import (
    CellLoss,
    check_shapes,
    flatten_cells,
    images_in_mean,
    mean_over_pairs,
    mean_where,
    share_without_match,
)

FAR = -1e4  # a finite logit that adds nothing to a sum: infinity would make gradients NaN


def contrast_cells(
    context: Tensor,  # (B, D, h, w) student, unit vectors
    target: Tensor,  # (B, D, h', w') teacher, unit vectors
    matches: Tensor,  # (B, h*w, h'*w') bool
    *,
    temperature: float,
    unmatched_images: Literal["keep", "skip"] = "keep",
    bank: Tensor | None = None,  # (N, D) negatives instead of those of the other view
    bank_mask: Tensor | None = None,  # (N,) bool, rows that may be used
) -> CellLoss:
    """The mean InfoNCE of the matching pairs of every image; 0 for an image without a pair."""
    check_shapes(context, target, matches)
    matches = matches.bool()
    with torch.autocast(context.device.type, enabled=False):
        queries = flatten_cells(context)  # (B, Q, D)
        cosines = queries @ flatten_cells(target).mT  # (B, Q, K)
        others, allowed = cosines, ~matches  # (B, Q, K)
        if bank is not None:
            others = queries @ bank.to(queries.dtype).T  # (B, Q, N)
            usable = torch.ones_like(bank[:, 0], dtype=torch.bool)
            allowed = (usable if bank_mask is None else bank_mask).expand_as(others)
        # One sum per query serves all its positives: they share their negatives, and no positive is
        # a negative of another.
        far = (others / temperature).masked_fill(~allowed, FAR).logsumexp(2)  # (B, Q)
        # -log(e^p / (e^p + e^far)) is softplus(far - p), which cannot overflow.
        pair_losses = F.softplus(far[..., None] - cosines / temperature)  # (B, Q, K)
        found = matches.any(2) & allowed.any(2)  # (B, Q)
        return CellLoss(
            loss=mean_over_pairs(pair_losses, matches),
            counted=images_in_mean(matches, skip_unmatched=unmatched_images == "skip"),
            pairs=matches.sum((1, 2)),
            positive_cosine=mean_over_pairs(cosines, matches).detach(),
            unmatched_cells=share_without_match(matches),
            negative_cosine=mean_where(others.detach(), allowed & found[..., None], (1, 2)),
            short_cells=(~allowed.any(2)).float().mean(1),
        )
