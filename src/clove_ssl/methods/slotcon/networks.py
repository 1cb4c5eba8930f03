"""SlotCon's networks: deep heads with GELU."""

from __future__ import annotations

import torch
from torch import nn


def conv_head(in_channels: int, hidden: int, out: int) -> nn.Sequential:
    """Three 1x1 convolutions with batch norm and GELU between them, for feature maps."""
    return _start_small(
        nn.Sequential(
            nn.Conv2d(in_channels, hidden, 1),
            nn.BatchNorm2d(hidden),
            nn.GELU(),
            nn.Conv2d(hidden, hidden, 1),
            nn.BatchNorm2d(hidden),
            nn.GELU(),
            nn.Conv2d(hidden, out, 1),
        )
    )


def linear_head(in_channels: int, hidden: int, out: int) -> nn.Sequential:
    """The same for rows: three linear layers."""
    return _start_small(
        nn.Sequential(
            nn.Linear(in_channels, hidden),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, out),
        )
    )


@torch.no_grad()
def _start_small(head: nn.Sequential) -> nn.Sequential:
    for layer in head:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return head
