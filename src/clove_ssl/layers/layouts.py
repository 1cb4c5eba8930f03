"""Operations whose gradient lies in memory as the maps do that they were made of.

A GPU convolves maps with their channels last. The gradients of torch's slices and means have the
channels first, whatever the maps have; what works on both then goes through memory in two orders at
once, which took a fifth of the step of a detector with a c4 head.

Dimensions: B maps, C channels, H x W cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def layout_of(maps: Tensor) -> torch.memory_format:
    """How maps (B, C, H, W) lie in memory."""
    channels_last = maps.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def every_nth(maps: Tensor, steps: Sequence[int]) -> Tensor:
    """Some rows and columns of maps (B, C, H, W): the first, and every so manieth after it."""
    if all(step == 1 for step in steps):
        return maps
    chosen: Tensor = _EveryNth.apply(maps, *steps)
    return chosen


def mean_of_cells(maps: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C)."""
    if not maps.is_cuda:  # a graph that is exported should show an ordinary mean
        return maps.mean(dim=(2, 3))
    mean: Tensor = _MeanOfCells.apply(maps)
    return mean


class _EveryNth(torch.autograd.Function):
    """Slices."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, down: int, across: int) -> Tensor:
        ctx.steps, ctx.shape, ctx.layout = (down, across), maps.shape, layout_of(maps)
        return maps[:, :, ::down, ::across].contiguous(memory_format=ctx.layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        down, across = ctx.steps
        spread = _room(ctx, gradient).zero_()
        spread[:, :, ::down, ::across] = gradient
        return spread, None, None


class _MeanOfCells(torch.autograd.Function):
    """A mean over rows and columns."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        ctx.shape, ctx.layout = maps.shape, layout_of(maps)
        return maps.mean(dim=(2, 3))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        share = gradient / (ctx.shape[2] * ctx.shape[3])  # (B, C)
        return _room(ctx, gradient).copy_(share[:, :, None, None])


def _room(ctx: Any, like: Tensor) -> Tensor:
    """Memory for a gradient of the maps, in their layout."""
    return torch.empty(ctx.shape, dtype=like.dtype, device=like.device, memory_format=ctx.layout)
