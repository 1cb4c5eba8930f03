"""VICReg's expander, and a gather over processes that gradients go through.

Dimensions: R rows of this process, N rows of all, D channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def build_expander(in_channels: int, width: int) -> nn.Sequential:
    """Three linear layers with batch norm and ReLU between them, for (R, C) rows."""
    return nn.Sequential(
        nn.Linear(in_channels, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width, bias=False),
    )


def gather_with_gradient(rows: Tensor) -> Tensor:
    """(R, ...) of every process to (N, ...) in rank order; each has equally many.

    A loss on the gathered rows is computed by every process. Gradients are those
    of the sum of these losses, which averaging over processes (as data-parallel
    training does) turns into the gradient of one.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)
    return gathered


class _Gather(torch.autograd.Function):
    """All-gather whose gradient is summed over the processes that used it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rows = rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]
