"""Batch norm for several views in one batch, each normalised by its own statistics.

Methods that send each view through a network on its own, as published, get the same numbers
from one pass over all views with these layers. One pass over twice as many images keeps a GPU
busier than two, once compiled; without compilation the layers here are slower than two passes.

Dimensions: V views, B images, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d)


class NormByView(_BatchNorm):
    """Batch norm of a batch that holds ``views`` views, one after the other."""

    views = 1

    def forward(self, features: Tensor) -> Tensor:
        """(V * B, C, ...) -> same shape."""
        if self.views == 1 or not self.training:
            return super().forward(features)
        parts = features.reshape(self.views, -1, *features.shape[1:])  # (V, B, C, ...)
        mean, variance = _statistics(parts)
        scale = (variance + self.eps).rsqrt()
        normalized: Tensor = _Normalize.apply(parts, mean, scale, self.weight, self.bias)
        count = parts[0, :, 0].numel()
        self._track(mean.flatten(1), variance.flatten(1) * (count / (count - 1)))
        return normalized.flatten(0, 1)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of the views, (V, C), one by one."""
        assert self.running_mean is not None  # only such layers are replaced
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(self.views)
        for view in range(self.views):
            self.running_mean.lerp_(mean[view], self.momentum)
            self.running_var.lerp_(variance[view], self.momentum)

    def _check_input_dim(self, features: Tensor) -> None:
        if features.dim() < 2:
            raise ValueError(f"expected (B, C, ...), got {tuple(features.shape)}")

    def extra_repr(self) -> str:
        """What tells such a layer from others."""
        return f"{super().extra_repr()}, views={self.views}"  # type: ignore[no-untyped-call]


def normalize_by_view(network: nn.Module, views: int) -> bool:
    """Make every batch norm in ``network`` treat its batches as ``views`` views.

    Says whether that was possible: with layers that are no plain batch norms, such as
    synchronized ones, ``network`` stays as it is.
    """
    norms = [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]
    if not all(_is_replaceable(layer) for layer in norms):
        return False
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _PLAIN):
                setattr(parent, name, _by_view(layer, views))
    return True


def as_one_view(network: nn.Module) -> None:
    """Let the layers of ``network`` treat any batch as one view, like plain ones."""
    for layer in network.modules():
        if isinstance(layer, NormByView):
            layer.views = 1


def _is_replaceable(norm: nn.Module) -> bool:
    if not isinstance(norm, _PLAIN) or type(norm) not in _PLAIN:
        return False
    return norm.track_running_stats and norm.momentum is not None


def _by_view(norm: _BatchNorm, views: int) -> NormByView:
    """A layer by view, made of the parameters and buffers of ``norm``."""
    layer = NormByView(norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=norm.affine)
    # Whole dictionaries: the very same tensors under the same names, absent ones stay None.
    layer._parameters = norm._parameters
    layer._buffers = norm._buffers
    layer.views = views
    return layer.train(norm.training)


@torch.no_grad()
def _statistics(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel in each view of (V, B, C, ...), both (V, 1, C, ...)."""
    variance, mean = torch.var_mean(_wide(parts), _summed(parts), correction=0, keepdim=True)
    return mean, variance


class _Normalize(torch.autograd.Function):
    """Normalise views, with a backward pass that sums over the batch only twice, in one go.

    It knows that mean and scale come from the features themselves.
    """

    @staticmethod
    def forward(
        ctx: Any,
        parts: Tensor,  # (V, B, C, ...)
        mean: Tensor,  # (V, 1, C, ...)
        scale: Tensor,  # (V, 1, C, ...) 1 / standard deviation
        weight: Tensor | None,  # (C,)
        bias: Tensor | None,  # (C,)
    ) -> Tensor:
        normalized = (_wide(parts) - mean) * scale
        if weight is not None and bias is not None:
            normalized = normalized * _channels(weight, parts) + _channels(bias, parts)
        ctx.save_for_backward(parts, mean, scale, weight)
        return _converted(normalized, parts.dtype)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        parts, mean, scale, weight = ctx.saved_tensors
        grad, centered, dims = _wide(outer), _wide(parts) - mean, _summed(parts)
        total = grad.sum(dims, keepdim=True)  # (V, 1, C, ...)
        along = (grad * centered).sum(dims, keepdim=True) * scale
        count = parts[0, :, 0].numel()
        inner = (grad - total / count - centered * scale * (along / count)) * scale
        if weight is None:
            return _converted(inner, parts.dtype), None, None, None, None
        inner = _converted(inner * _channels(weight, parts), parts.dtype)
        return inner, None, None, along.flatten(1).sum(0), total.flatten(1).sum(0)


def _wide(features: Tensor) -> Tensor:
    """In fp32 or better."""
    return _converted(features, torch.promote_types(features.dtype, torch.float32))


def _converted(features: Tensor, dtype: torch.dtype) -> Tensor:
    """Where there is nothing to convert, a compiled ``to`` of torch 2.11 loses all gradients."""
    return features if features.dtype == dtype else features.to(dtype)


def _summed(parts: Tensor) -> tuple[int, ...]:
    """All axes of (V, B, C, ...) but views and channels."""
    return (1, *range(3, parts.dim()))


def _channels(values: Tensor, parts: Tensor) -> Tensor:
    """(C,) values beside the channels of (V, B, C, ...)."""
    return values.reshape(-1, *[1] * (parts.dim() - 3))
