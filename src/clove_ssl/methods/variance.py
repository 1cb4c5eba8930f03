"""VICReg's terms, and VICRegL's use of them on matched cells.

Embeddings of matching things are drawn together (*invariance*), every channel
keeps a spread over the batch (*variance*) and no two channels say the same
(*covariance*). Variance and covariance need the batch of all processes, so the
functions take what gathers it.

Dimensions: B images, N images of all processes, L cells, P matched cells, D channels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.layers.collectives import processes
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.methods.config import Chance, VarianceWeights

Gather = Callable[[Tensor], Tensor]  # (B, ...) of this process -> (N, ...) of all


class VarianceTerms(NamedTuple):
    """The three terms, weighted: scalars."""

    invariance: Tensor
    variance: Tensor
    covariance: Tensor

    def total(self) -> Tensor:
        """Their sum."""
        return self.invariance + self.variance + self.covariance


class NearestCells(NamedTuple):
    """Pairs of cells: the cells of one map and their nearest ones in another."""

    here: Tensor  # (B, P), ascending
    there: Tensor  # (B, P)


class Way(NamedTuple):
    """One way of matching cells: those of one view with those of another."""

    here: int
    there: int
    closest: int | None  # how many pairs count that are near in the image; None: near in features


def ways_of(
    pairs: Sequence[tuple[int, int]], cells: Sequence[int], matches: tuple[int, int]
) -> Counter[Way]:
    """How often each way of matching counts; two views that form two pairs share their ways."""
    ways: Counter[Way] = Counter()
    for i, j in pairs:
        first, second = min(matches[0], cells[i]), min(matches[1], cells[j])
        ways.update([Way(i, j, None), Way(j, i, None), Way(i, j, first), Way(j, i, second)])
    return ways


def check_spreads(images: int) -> None:
    """Refuse a single image, whose embedding has no variance and nothing to be told apart from."""
    if images * processes() < 2:
        raise UserError(
            "The loss on whole images spreads those that are seen together, and this run sees one "
            "at a time. Give a --batch-size and a --micro-batch of 2 or more."
        )


def variance_hinge(rows: Tensor) -> Tensor:
    """How far the standard deviations of (..., N, D) rows over N are below 1, averaged."""
    # Inside the root, or its slope at 0 would be infinite: just where a collapse has to be undone.
    return F.relu(1 - (rows.var(-2) + 1e-4).sqrt()).mean()


def covariance_penalty(rows: Tensor, chance: Chance = "kept") -> Tensor:
    """Squared covariances between different channels of (..., N, D) rows, summed, over D."""
    count, channels = rows.shape[-2:]
    centered = (rows - rows.mean(-2, keepdim=True)) / math.sqrt(count - 1)
    if count < channels:
        # The squares of X' X and of X X' have the same sum; the smaller product is formed.
        products = centered @ centered.mT  # (..., N, N)
        own = centered.square().sum(-2)  # (..., D)
    else:
        products = centered.mT @ centered  # (..., D, D)
        own = products.diagonal(dim1=-2, dim2=-1)
    # All squares less those of the diagonal: setting it to zero would copy (..., D, D).
    others = products.square().sum((-2, -1)) - own.square().sum(-1)  # (...)
    if chance == "subtracted":
        # Two normal channels that know nothing of each other have a squared covariance, too: the
        # product of their variances over N - 1, on average. Here for all pairs.
        others = others - (own.sum(-1).square() - own.square().sum(-1)) / (count - 1)
    return others.mean() / channels


def global_terms(
    vectors: Sequence[Tensor],  # of every view, (B, D)
    pairs: Sequence[tuple[int, int]],
    *,
    weights: VarianceWeights,
    gather: Gather,
    counts: Sequence[Tensor] | None = None,  # of every pair, (B,)
    chance: Chance = "kept",
) -> VarianceTerms:
    """VICReg on whole images: invariance is a mean over pairs, the rest one over views.

    Images count in the invariance of a pair as ``counts`` says, or all alike; ``chance`` is for
    :func:`covariance_penalty`.
    """
    with torch.autocast(vectors[0].device.type, enabled=False):
        wide = [at_least_fp32(vector) for vector in vectors]
        # Variance and covariance are those of the whole batch, with gradients to all processes.
        # Distances need no gathering, as both views of an image are here.
        everyone = [gather(vector) for vector in wide]
        known = [None] * len(pairs) if counts is None else counts
        told = zip(pairs, known, strict=True)
        distances = [_distance(wide[i], wide[j], count) for (i, j), count in told]
        return VarianceTerms(
            weights.invariance * _mean(distances),
            weights.variance * _mean([variance_hinge(rows) for rows in everyone]),
            weights.covariance * _mean([covariance_penalty(rows, chance) for rows in everyone]),
        )


def local_terms(
    maps: Sequence[Tensor],  # of every view, (B, L, D)
    locations: Sequence[Tensor],  # of every view, (B, L, 2) cell centres in the image
    pairs: Sequence[tuple[int, int]],
    *,
    matches: tuple[int, int],
    weights: VarianceWeights,
    gather: Gather,
) -> VarianceTerms:
    """VICReg on cells that are nearest in feature space, plus on those nearest in the image.

    Every cell has a partner in feature space. In the image only the closest
    pairs count: ``matches[0]`` from the first map of a pair, ``matches[1]`` back.
    """
    with torch.autocast(maps[0].device.type, enabled=False):
        wide = [at_least_fp32(each) for each in maps]
        ways = ways_of(pairs, [each.shape[1] for each in maps], matches)
        terms = [times * _way_terms(wide, locations, way, gather) for way, times in ways.items()]
        # Two ways of matching are added, the two directions of each and all pairs averaged.
        invariance, variance, covariance = torch.stack(terms).sum(0) / (2 * len(pairs))
        return VarianceTerms(
            weights.invariance * invariance,
            weights.variance * variance,
            weights.covariance * covariance,
        )


def nearest_cells(distances: Tensor, count: int | None = None) -> NearestCells:
    """The nearest column of every row of (B, L, L') distances, or of the ``count`` best rows."""
    nearest = distances.min(2)  # values and indices, (B, L) each
    size = distances.shape[1] if count is None else count
    # In the order of cells, not of distances: statistics are taken place by place over the batch.
    here = nearest.values.topk(size, dim=1, largest=False).indices.sort(1).values  # (B, P)
    return NearestCells(here, nearest.indices.take_along_dim(here, dim=1))


def feature_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of embeddings (B, L, D) and (B, L', D): (B, L, L')."""
    # As a product: differences would take (B, L, L', D), some gigabytes.
    return a.square().sum(-1)[:, :, None] + b.square().sum(-1)[:, None] - 2 * a @ b.mT


def location_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of places (B, L, 2) and (B, L', 2): (B, L, L').

    Differences first: a product of coordinates in the hundreds would lose the
    fractions of a pixel that decide between neighbours.
    """
    return (a[:, :, None] - b[:, None]).square().sum(-1)


def _distance(a: Tensor, b: Tensor, count: Tensor | None) -> Tensor:
    """The mean squared difference of (B, D) rows, which may count differently (B)."""
    if count is None:
        return F.mse_loss(a, b)
    return (count[:, None] * F.mse_loss(a, b, reduction="none")).mean()


def _way_terms(
    maps: Sequence[Tensor], locations: Sequence[Tensor], way: Way, gather: Gather
) -> Tensor:
    """The three terms of cells that are matched in one way, unweighted: (3,)."""
    here, there = maps[way.here], maps[way.there]
    if way.closest is None:
        # Who matches whom is no function to be learned.
        distances = feature_distances(here.detach(), there.detach())
    else:
        distances = location_distances(locations[way.here], locations[way.there])
    return _cell_terms(here, there, nearest_cells(distances, way.closest), gather)


def _cell_terms(a: Tensor, b: Tensor, cells: NearestCells, gather: Gather) -> Tensor:
    """The three terms of matched cells of two (B, L, D) maps, unweighted: (3,).

    Spread is looked at over the batch, for each of the P places on its own.
    """
    here = a.take_along_dim(cells.here[..., None], dim=1)  # (B, P, D)
    there = b.take_along_dim(cells.there[..., None], dim=1)  # (B, P, D)
    everyone = [gather(each).transpose(0, 1) for each in (here, there)]  # (P, N, D) each
    variance = _mean([variance_hinge(rows) for rows in everyone])
    covariance = _mean([covariance_penalty(rows) for rows in everyone])
    return torch.stack([F.mse_loss(here, there), variance, covariance])


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean(0)
