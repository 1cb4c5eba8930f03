"""Convolutions with a norm, and the ways in which detectors start their weights.

Dimensions: B maps, C channels, H x W cells.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.fused_norm.activation import normalize, normalize_relu
from clove_ssl.layers.ladder import by_rows

Norm = Literal["batch", "none"]

WORTH_FUSING = 1 << 25
"""Values of a map from which on kernels of ours save a GPU more time than they cost the host, which
has several of them to start for every norm."""


def is_worth_fusing(maps: Tensor, least: int) -> bool:
    """Whether maps have so many values; graphs are traced for any size, and so do not ask."""
    return not torch.compiler.is_compiling() and maps.numel() >= least


class NormedConv(nn.Conv2d):
    """A convolution that keeps the size of its map, then a norm and a ReLU if they are wanted.

    A convolution without a norm has a bias, one with a norm has none.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel: Side of the kernel, odd.
        norm: Kind of norm.
        relu: Whether the output is rectified.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, *, norm: Norm, relu: bool
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel, padding=kernel // 2, bias=norm == "none"
        )
        self.norm = nn.BatchNorm2d(out_channels) if norm == "batch" else None
        self.relu = relu
        self.least_to_fuse = WORTH_FUSING

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, out_channels, H, W)."""
        result = by_rows(super().forward, feature_map)
        if self.norm is not None and is_worth_fusing(result, self.least_to_fuse):
            return normalize_relu(self.norm, result) if self.relu else normalize(self.norm, result)
        if self.norm is not None:
            result = self.norm(result)
        return F.relu(result) if self.relu else result


def start_for_relu(layer: nn.Conv2d | nn.ConvTranspose2d) -> None:
    """Normal weights whose variance is 2 over the fan-out, for layers in front of a ReLU.

    The fan-out is taken from dimension 0 of the weights, which in a transposed convolution is its
    input.
    """
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    _start_bias(layer)


def start_linear(layer: nn.Conv2d | nn.Linear) -> None:
    """Uniform weights whose variance is 1 over the fan-in, for the pyramid and linear layers."""
    nn.init.kaiming_uniform_(layer.weight, a=1)
    _start_bias(layer)


def start_small(layer: nn.Conv2d | nn.Linear, *, std: float) -> None:
    """Normal weights of a given spread, for predictors."""
    nn.init.normal_(layer.weight, std=std)
    _start_bias(layer)


def _start_bias(layer: nn.Conv2d | nn.ConvTranspose2d | nn.Linear) -> None:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
