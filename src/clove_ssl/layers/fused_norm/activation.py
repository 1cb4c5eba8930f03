"""Batch norm and what follows it: by kernels of ours where they can, by torch everywhere else.

Both ways compute the same; ours rounds less often, and reads every map as rarely as can be.
Compiled networks do without them, as the compiler joins such operations by itself.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Sums(NamedTuple):
    """Sums over all cells of a map, which the kernel that made the map took by the way."""

    table: Tensor  # (parts, 2, C) of values less a level, and of their squares
    level: Tensor  # (C,), some value near the mean of each channel


def normalize(norm: nn.Module, features: Tensor) -> Tensor:
    """norm(features)."""
    if is_fused(norm, features):
        return _fused(norm, features, None, relu=False)
    normalized: Tensor = norm(features)
    return normalized


def normalize_relu(norm: nn.Module, features: Tensor, side: Tensor | None = None) -> Tensor:
    """relu(norm(features) + side), where there is something to add."""
    if is_fused(norm, features) and _fits_beside(side, features):
        return _fused(norm, features, side, relu=True)
    normalized = norm(features)
    return F.relu(normalized if side is None else normalized + side)


def normalize_relu_pool(norm: nn.Module, features: Tensor, sums: Sums | None = None) -> Tensor:
    """The largest of 3 x 3 values of relu(norm(features)), every two cells.

    Args:
        sums: Of ``features``, where there are any; without them, the map is read once more.
    """
    if is_fused(norm, features):
        return _fused(norm, features, None, relu=True, pools=True, sums=sums)
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


def _fits_beside(side: Tensor | None, features: Tensor) -> bool:
    if side is None:
        return True
    return side.shape == features.shape and side.is_contiguous(memory_format=torch.channels_last)


def _fused(
    norm: nn.Module,
    features: Tensor,
    side: Tensor | None,
    *,
    relu: bool,
    pools: bool = False,
    sums: Sums | None = None,
) -> Tensor:
    # Here, since importing the kernels needs Triton, which a CPU installation does not have.
    from clove_ssl.layers.fused_norm.launches import NormActivation

    result: Tensor = NormActivation.apply(
        features, side, norm.weight, norm.bias, norm, relu, pools, sums
    )
    return result
