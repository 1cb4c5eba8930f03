"""Batch norm and what follows it: by kernels of ours where they can, by torch everywhere else.

Both ways compute the same; ours rounds less often, and reads every map as rarely as can be.
Compiled networks do without them, as the compiler joins such operations by itself.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Sums(NamedTuple):
    """Sums over all cells of a map, which the kernel that made the map took by the way."""

    table: Tensor  # (parts, 2, C) of values less a level, and of their squares
    level: Tensor  # (C,), some value near the mean of each channel


def normalize(norm: nn.Module, features: Tensor) -> Tensor:
    """norm(features)."""
    fused = is_fused(norm, features)
    normalized: Tensor = _fused(norm, features, None, relu=False) if fused else norm(features)
    return normalized


def normalize_relu(norm: nn.Module, features: Tensor) -> Tensor:
    """relu(norm(features))."""
    if is_fused(norm, features):
        out: Tensor = _fused(norm, features, None, relu=True)
        return out
    return F.relu(norm(features))


def normalize_add_relu(norm: nn.Module, features: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """relu(norm(features) + side), twice: one for each of two users, or one for all of them.

    Both are the same map in the same memory, but for our kernels they have gradients of their own,
    which are added where they are read anyway.
    """
    if is_fused(norm, features) and _fits_beside(side, features):
        twice: tuple[Tensor, Tensor] = _fused(norm, features, side, relu=True)
        return twice
    out = F.relu(norm(features) + side)
    return out, out


def normalize_relu_pool(norm: nn.Module, features: Tensor, sums: Sums | None = None) -> Tensor:
    """The largest of 3 x 3 values of relu(norm(features)), every two cells.

    Args:
        sums: Of ``features``, where there are any; without them, the map is read once more.
    """
    if is_fused(norm, features):
        # Here, since importing the kernels needs Triton, which a CPU installation does not have.
        from clove_ssl.layers.fused_norm.launches import NormPool

        pooled: Tensor = NormPool.apply(features, norm.weight, norm.bias, norm, sums)
        return pooled
    return F.max_pool2d(F.relu(norm(features)), 3, stride=2, padding=1)


def is_fused(norm: nn.Module, features: Tensor) -> bool:
    """Whether the kernels do all that a layer does."""
    return (
        not torch.compiler.is_compiling()
        and features.is_cuda
        # Not a subclass: synchronized norms and norms by view take their statistics from elsewhere.
        and type(norm) is nn.BatchNorm2d
        and norm.training
        and norm.track_running_stats
        and norm.momentum is not None
        and not norm._forward_pre_hooks  # whoever looks at the inputs of a layer is not passed over
        and features.dtype in (torch.bfloat16, torch.float16, torch.float32)
        # A row of the table is a cell only if its channels lie side by side.
        and features.is_contiguous(memory_format=torch.channels_last)
        # One value per channel has no unbiased variance; torch's own layer refuses it with a
        # message.
        and features.numel() > features.shape[1]
        and has_triton()
    )


@cache
def has_triton() -> bool:
    """Whether kernels can be made here."""
    return find_spec("triton") is not None


def _fits_beside(side: Tensor, features: Tensor) -> bool:
    return side.shape == features.shape and side.is_contiguous(memory_format=torch.channels_last)


def _fused(norm: nn.Module, features: Tensor, side: Tensor | None, *, relu: bool) -> Any:
    """A map, or two that share their memory where there is a side."""
    from clove_ssl.layers.fused_norm.launches import NormActivation

    return NormActivation.apply(features, side, norm.weight, norm.bias, norm, relu)
