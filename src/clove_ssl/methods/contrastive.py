"""InfoNCE: find the positive among the entries of a queue.

    loss = -log( e^(q.p / t) / (e^(q.p / t) + sum over n of e^(q.n / t)) )

All vectors have length 1. All arithmetic is in fp32 (or float64 when given
float64), also under autocast: at temperature 0.2 the errors of bf16 cosines are
five times larger, and the sum has tens of thousands of terms.

Dimensions: ... any leading dimensions (images, cells), S negatives, D channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.layers.collectives import processes
from clove_ssl.layers.fp32 import all_at_least_fp32


class Contrast(NamedTuple):
    """The loss of every query, and what explains it."""

    loss: Tensor  # (...)
    positive_cosine: Tensor  # (...) detached
    negative_cosine: Tensor  # (...) detached, mean over the negatives
    found: Tensor  # (...) bool, the positive is more alike than every negative


def info_nce(query: Tensor, positive: Tensor, negatives: Tensor, *, temperature: float) -> Tensor:
    """Mean InfoNCE of (..., D) queries, each with its own positive and (S, D) common negatives."""
    return contrast(query, positive, negatives, temperature=temperature).loss.mean()


def contrast(
    query: Tensor,  # (..., D) unit vectors
    positive: Tensor,  # (..., D) unit vectors
    negatives: Tensor,  # (S, D) unit vectors
    *,
    temperature: float,
) -> Contrast:
    """What :func:`info_nce` averages, query by query."""
    _check_shapes(query, positive, negatives)
    query, positive, negatives = all_at_least_fp32(query, positive, negatives)
    with torch.autocast(query.device.type, enabled=False):
        # The short factor is scaled, and the positive joins after the sum: the (..., S) logits
        # are by far the largest tensor of a method, and there is one copy of them.
        scaled = query / temperature
        similar = (scaled * positive).sum(-1)  # (...)
        others = scaled @ negatives.T  # (..., S)
        loss = torch.logaddexp(similar, others.logsumexp(-1)) - similar
        return Contrast(
            loss=loss,
            positive_cosine=similar.detach() * temperature,
            # The mean of products is the product with the mean: no second (..., S) tensor for a
            # metric.
            negative_cosine=query.detach() @ negatives.mean(0),
            found=similar.detach() > others.detach().amax(-1),
        )


def most_similar_cells(query_map: Tensor, key_map: Tensor) -> Tensor:
    """For every cell of (B, C, h, w), the cell of (B, C, h', w') with the largest cosine.

    Gives (B, h*w) positions in the flattened key map, without a gradient. The
    first wins where several are equally similar.
    """
    with torch.no_grad(), torch.autocast(query_map.device.type, enabled=False):
        query_map, key_map = all_at_least_fp32(query_map, key_map)
        # The length of a query does not change which key is the nearest.
        queries = query_map.flatten(2)  # (B, C, h*w)
        keys = torch.nn.functional.normalize(key_map.flatten(2), dim=1)  # (B, C, h'*w')
        return (queries.mT @ keys).argmax(2)


def _check_shapes(query: Tensor, positive: Tensor, negatives: Tensor) -> None:
    """Refuse what broadcasting would accept."""
    if query.shape != positive.shape:
        raise ValueError(
            f"query {tuple(query.shape)} and positive {tuple(positive.shape)} must be alike"
        )
    if negatives.ndim != 2 or negatives.shape[1] != query.shape[-1] or not len(negatives):
        raise ValueError(
            f"negatives {tuple(negatives.shape)} must be (S, {query.shape[-1]}) with S above 0"
        )


def mean_of_counted(values: Tensor, counted: Tensor, *, count: Tensor | None = None) -> Tensor:
    """Mean of values over the counted ones; 0 without any.

    ``count`` replaces their number, where that is a mean over processes.
    """
    return mean_of_sum((values * counted).sum(), counted.sum() if count is None else count)


def mean_of_sum(total: Tensor, number: Tensor) -> Tensor:
    """A sum over ``number`` counted things, on average of all processes, divided by it."""
    # The least that processes count on average, unless none counts any and the sum is zero. A
    # smaller bound would make gradients infinite before they are multiplied by that zero.
    return total / number.to(total.dtype).clamp(min=1 / processes())
