"""Batch norm for several views in one batch, each normalised by its own statistics.

Methods that send each view through a network on its own, as published, get the same numbers
from one pass over all views with these layers. One pass over twice as many images keeps a GPU
busier than two, once compiled; without compilation the layers here are slower than two passes.

Sums over a view are taken group by group at first: that is work for many at once, where a view as
a whole is one long sum. A group is a few images, as many as make up enough cells.

Dimensions: V views of B images, G groups of I images in all views, C channels, L cells.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.layers.fp32 import at_least_fp32, converted
from clove_ssl.layers.normalization import remade, replace_norms, track

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d)
_CELLS_OF_A_GROUP = 256  # with one map of 7 x 7 cells, sums take twice as long


class NormByView(_BatchNorm):
    """Batch norm of a batch that holds ``views`` views, one after the other."""

    views: int

    def forward(self, features: Tensor) -> Tensor:
        """(V * B, C, ...) -> same shape."""
        if not self.training:
            return super().forward(features)
        # Values of a channel in one view. With a single one the variance is 0 and its unbiased form
        # 0 / 0.
        count = features[:, 0].numel() // self.views
        if count < 2:
            raise ValueError("batch norm needs more than 1 value per channel in every view")
        # Whether views share statistics is part of a method: CLoVE joins its views, PixPro does
        # not. Without a graph: the backward pass of ``_Normalize`` knows where they come from.
        means, variances = _statistics(features, self.views)  # (V, C)
        scale = (variances + self.eps).rsqrt()
        normalized: Tensor = _Normalize.apply(features, means, scale, self.weight, self.bias)
        # One update after the other, as if the views had come one after the other.
        for mean, variance in zip(means, variances * (count / (count - 1)), strict=True):
            track(self, mean, variance)
        return normalized

    def _check_input_dim(self, features: Tensor) -> None:
        if features.dim() < 2:
            raise ValueError(f"expected (B, C, ...), got {tuple(features.shape)}")

    def extra_repr(self) -> str:
        """What tells such a layer from others."""
        return f"{super().extra_repr()}, views={self.views}"  # type: ignore[no-untyped-call]


def normalize_by_view(*networks: nn.Module, views: int) -> bool:
    """Make every batch norm in all ``networks`` treat its batches as ``views`` views.

    Says whether that was possible: with layers that are no plain batch norms, such as
    synchronized ones, in any of them, all stay as they are.
    """
    # All or none, and looked at before anything changes: a student by view with a teacher that is
    # not would compare features of different statistics.
    layers = [layer for network in networks for layer in network.modules()]
    if not all(_is_replaceable(layer) for layer in layers if isinstance(layer, _BatchNorm)):
        return False
    for network in networks:
        replace_norms(network, lambda norm: _by_view(norm, views))
    return True


def _is_replaceable(norm: _BatchNorm) -> bool:
    # The very types: a subclass may do more than these layers know, as SyncBatchNorm does. Without
    # a momentum running statistics are plain averages, which need a count that is not kept here.
    return type(norm) in _PLAIN and norm.track_running_stats and norm.momentum is not None


def _by_view(norm: _BatchNorm, views: int) -> NormByView:
    layer = remade(norm, NormByView)
    layer.views = views
    return layer


@torch.no_grad()
def _statistics(features: Tensor, views: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel of (V * B, C, ...) in each view, both (V, C)."""
    groups = _grouped(at_least_fp32(features), views)
    # Groups are equally large, so the variance of a view is that inside its groups, averaged, plus
    # that between their means. A mean of squares minus a squared mean would lose digits.
    # In fp32 even under autocast: with the 8 bits of bf16 a sum of thousands of values stops
    # growing.
    within, means = torch.var_mean(groups, (1, 3), correction=0)  # (G, C)
    between, mean = torch.var_mean(_by_view_of(means, views), 1, correction=0)  # (V, C)
    return mean, _by_view_of(within, views).mean(1) + between


class _Normalize(torch.autograd.Function):
    """Normalise views, with a backward pass that sums over the batch only twice, in one go.

    It knows that mean and scale come from the features themselves.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,  # (V * B, C, ...)
        mean: Tensor,  # (V, C)
        scale: Tensor,  # (V, C) 1 / standard deviation
        weight: Tensor | None,  # (C,)
        bias: Tensor | None,  # (C,)
    ) -> Tensor:
        normalized = (at_least_fp32(features) - _beside(mean, features)) * _beside(scale, features)
        if weight is not None and bias is not None:
            normalized = normalized * _beside(weight[None], features) + _beside(
                bias[None], features
            )
        # The input alone: keeping normalised features as well would take another map of memory.
        ctx.save_for_backward(features, mean, scale, weight)
        return converted(normalized, features.dtype)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        # With n = (x - mean) * scale and gradients g of what came out, x has the gradient
        #     scale * weight * (g - average(g) - n * average(g * n)):
        # a shift or a stretch of a whole view changes nothing behind the norm, so both are taken
        # out. Autograd would go through mean and variance again, with more passes over the batch.
        features, mean, scale, weight = ctx.saved_tensors
        # Centred features are computed again: a subtraction costs less than a map kept in memory.
        # ``centered`` lacks the factor ``scale``, which is why ``slope`` has it twice.
        grad, centered = at_least_fp32(outer), at_least_fp32(features) - _beside(mean, features)
        total = _sums(grad, len(mean))  # (V, C)
        along = _sums(grad * centered, len(mean)) * scale  # (V, C) the sum of g * n
        count = features[:, 0].numel() // len(mean)
        level, slope = total / count, along * scale / count
        inner = grad - _beside(level, features) - centered * _beside(slope, features)
        if weight is None:
            return converted(inner * _beside(scale, features), features.dtype), *[None] * 4
        inner = converted(inner * _beside(scale * weight, features), features.dtype)
        return inner, None, None, along.sum(0), total.sum(0)  # all views share weight and bias


def _grouped(features: Tensor, views: int) -> Tensor:
    """(V * B, C, ...) -> (G, I, C, L) with L = 1 for rows; no group is in two views."""
    images, cells = len(features) // views, math.prod(features.shape[2:])
    # Rounded up, so a map with many cells is a group by itself.
    enough = min(images, -(-_CELLS_OF_A_GROUP // cells))
    # The next number of images that divides a view; all of them always do.
    together = next(number for number in range(enough, images + 1) if images % number == 0)
    return features.reshape(-1, together, features.shape[1], cells)


def _by_view_of(values: Tensor, views: int) -> Tensor:
    """(G, C) -> (V, G / V, C)."""
    return values.reshape(views, -1, values.shape[1])


def _sums(values: Tensor, views: int) -> Tensor:
    """Sums over each view: (V * B, C, ...) -> (V, C)."""
    return _by_view_of(_grouped(values, views).sum((1, 3)), views).sum(1)


def _beside(values: Tensor, features: Tensor) -> Tensor:
    """Values of views or of all, (V or 1, C), beside each image of (V * B, C, ...)."""
    views, channels = values.shape
    # Without compilation ``reshape`` copies; compiled, the (V, C) numbers are read where they are.
    each = values[:, None].expand(views, len(features) // views, channels)
    return each.reshape(-1, channels, *[1] * (features.dim() - 2))
