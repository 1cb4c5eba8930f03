"""SlotCon's networks: deep heads with GELU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn


def conv_head(in_channels: int, hidden: int, out: int) -> nn.Sequential:
    """Three 1x1 convolutions with batch norm and GELU between them, for feature maps."""
    return _head(partial(nn.Conv2d, kernel_size=1), nn.BatchNorm2d, in_channels, hidden, out)


def linear_head(in_channels: int, hidden: int, out: int) -> nn.Sequential:
    """The same for rows: three linear layers."""
    return _head(nn.Linear, nn.BatchNorm1d, in_channels, hidden, out)


def _head(
    layer: Callable[[int, int], nn.Module],
    norm: Callable[[int], nn.Module],
    in_channels: int,
    hidden: int,
    out: int,
) -> nn.Sequential:
    head = nn.Sequential(
        layer(in_channels, hidden),
        norm(hidden),
        nn.GELU(),
        layer(hidden, hidden),
        norm(hidden),
        nn.GELU(),
        layer(hidden, out),
    )
    head.apply(_start_small)
    return head


@torch.no_grad()
def _start_small(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
