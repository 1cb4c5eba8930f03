"""SetSim's loss: a cell is positive with a *set* of cells of the other view.

Sets are masks of pairs of cells. Some pairs stand out in both views and look
alike (:func:`attention_pairs`); others show the same place, which
``views/geometry.py`` finds; and the most similar cell may join a set
(:func:`with_nearest`). With the set P of a cell q, the queue's entries n and the
temperature t, the loss of the cell is

    mean over p in P of  -log( e^(q.p / t) / Z )
    Z = sum over p in P of e^(q.p / t) + sum over n of e^(q.n / t)

Its mean over the cells of an image that have a set is the loss of the image.
All arithmetic is in fp32 (or float64 when given float64), also under autocast.

Dimensions: B images, C channels of the backbone, D of an embedding, L query
cells, K key cells, S entries of the queue.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.layers.fp32 import all_at_least_fp32
from clove_ssl.methods.cells import (
    CellLoss,
    flatten_cells,
    images_in_mean,
    mean_over_pairs,
    share_without_match,
)


def foreground(feature_map: Tensor, threshold: float) -> Tensor:
    """Cells of (B, C, h, w) that stand out: (B, h*w) bool.

    The mean square of a cell's channels, scaled to 0 for the weakest and 1 for
    the strongest cell of the image, has to reach ``threshold``. Where all cells
    are equally strong none stands out.
    """
    strength = flatten_cells(feature_map.detach()).square().mean(2)  # (B, L)
    weakest, strongest = strength.aminmax(dim=1, keepdim=True)
    span = (strongest - weakest).clamp(min=torch.finfo(strength.dtype).tiny)
    return (strength - weakest) / span >= threshold


def cell_cosines(query_map: Tensor, key_map: Tensor) -> Tensor:
    """Cosines of all cells of (B, C, h, w) maps: (B, L, K), without a gradient."""
    with torch.no_grad(), torch.autocast(query_map.device.type, enabled=False):
        queries, keys = (F.normalize(flatten_cells(each), dim=2) for each in (query_map, key_map))
        return queries @ keys.mT


def attention_pairs(
    query_map: Tensor, key_map: Tensor, cosines: Tensor, *, attention: float, likeness: float
) -> Tensor:
    """Pairs that stand out in both maps with a cosine from ``likeness`` up: (B, L, K) bool."""
    queries, keys = foreground(query_map, attention), foreground(key_map, attention)
    return queries[:, :, None] & keys[:, None, :] & (cosines >= likeness)


def with_nearest(
    pairs: Tensor, cosines: Tensor, cells: Literal["none", "matched", "all"]
) -> Tensor:
    """Add the key cell most like a query cell to its set, if that is ``matched`` or always."""
    if cells == "none":
        return pairs
    nearest = F.one_hot(cosines.argmax(2), cosines.shape[2]).bool()  # (B, L, K)
    return pairs | (nearest if cells == "all" else nearest & pairs.any(2, keepdim=True))


def contrast_sets(
    query: Tensor,  # (B, L, D) unit vectors
    keys: Tensor,  # (B, K, D) unit vectors
    pairs: Tensor,  # (B, L, K) bool
    negatives: Tensor,  # (S, D) unit vectors
    *,
    temperature: float,
    unmatched_images: Literal["keep", "skip"] = "keep",
) -> CellLoss:
    """The loss of every image; one without a set has 0, or is not counted (``skip``)."""
    query, keys, negatives = all_at_least_fp32(query, keys, negatives)
    with torch.autocast(query.device.type, enabled=False):
        scaled = query / temperature
        similar = scaled @ keys.mT  # (B, L, K)
        others = (scaled @ negatives.T).logsumexp(-1)  # (B, L)
        # Infinity is safe here: gradients of masked places are those of a softmax, which are 0.
        in_set = similar.masked_fill(~pairs, -torch.inf)
        # The queue's sum stands among them, so no row is all minus infinity.
        total = torch.cat([in_set, others[..., None]], dim=2).logsumexp(2)  # (B, L)
        members = pairs.sum(2)  # (B, L)
        attraction = (similar * pairs).sum(2) / members.clamp(min=1)
        has_set = members > 0
        by_cell = (total - attraction) * has_set
        return CellLoss(
            loss=by_cell.sum(1) / has_set.sum(1).clamp(min=1),
            counted=images_in_mean(pairs, skip_unmatched=unmatched_images == "skip"),
            pairs=members.sum(1),
            positive_cosine=mean_over_pairs(similar.detach() * temperature, pairs),
            unmatched_cells=share_without_match(pairs),
        )
