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
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from clove_ssl.layers.fused_norm.activation import has_triton


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


def first_maps(maps: Tensor, count: int) -> Tensor:
    """The first ``count`` of maps (B, C, H, W)."""
    first: Tensor = _FirstMaps.apply(maps, count)
    return first


def upper_left(maps: Tensor, height: int, width: int) -> Tensor:
    """The first rows and columns of maps (B, C, H, W), without gaps: (B, C, height, width)."""
    corner: Tensor = _UpperLeft.apply(maps, height, width)
    return corner


def vectors_of(maps: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C * H * W), as ``flatten`` gives them."""
    # The device first, since a graph may not look at sizes.
    if not maps.is_cuda or not _has_kernels(maps, layout_of(maps)):
        return maps.flatten(1)
    vectors: Tensor = _Vectors.apply(maps)
    return vectors


def _has_kernels(maps: Tensor, layout: torch.memory_format) -> bool:
    """Whether kernels of ours move such maps where these, or their gradients, lie in a layout."""
    return maps.is_cuda and layout == torch.channels_last and has_triton()


class _FirstMaps(torch.autograd.Function):
    """Some maps, and a gradient with zeros behind it."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, count: int) -> Tensor:
        ctx.more, ctx.layout = len(maps) - count, layout_of(maps)
        return maps[:count].detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous(memory_format=ctx.layout)
        return F.pad(gradient, (0, 0, 0, 0, 0, 0, 0, ctx.more)), None


class _UpperLeft(torch.autograd.Function):
    """Some rows and columns, and a gradient with zeros around it."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, height: int, width: int) -> Tensor:
        ctx.more, ctx.layout = (maps.shape[2] - height, maps.shape[3] - width), layout_of(maps)
        return maps[:, :, :height, :width].contiguous(memory_format=ctx.layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        below, right = ctx.more
        gradient = gradient.contiguous(memory_format=ctx.layout)
        return F.pad(gradient, (0, right, 0, below)), None, None


class _Vectors(torch.autograd.Function):
    """Maps with their channels last as vectors with their channels first, and back."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        from clove_ssl.layers.layout_kernels import turn

        ctx.shape = maps.shape
        return turn(maps.permute(0, 2, 3, 1).flatten(1, 2)).flatten(1)  # of (B, H * W, C)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        from clove_ssl.layers.layout_kernels import turn

        count, channels, height, width = ctx.shape
        turned = turn(gradient.contiguous().view(count, channels, height * width))
        return turned.view(count, height, width, channels).permute(0, 3, 1, 2)


class _EveryNth(torch.autograd.Function):
    """Slices."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, down: int, across: int) -> Tensor:
        ctx.steps, ctx.shape, ctx.layout = (down, across), maps.shape, layout_of(maps)
        chosen = maps[:, :, ::down, ::across]
        if not _has_kernels(maps, ctx.layout):
            return chosen.contiguous(memory_format=ctx.layout)
        return _moved(maps, _room(chosen.shape, maps, ctx.layout), read=(down, across))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        down, across = ctx.steps
        spread = _room(ctx.shape, gradient, ctx.layout)
        if _has_kernels(gradient, ctx.layout):
            gradient = gradient.contiguous(memory_format=ctx.layout)
            return _moved(gradient, spread, chosen=(down, across)), None, None
        spread.zero_()[:, :, ::down, ::across] = gradient
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
        share = share[:, :, None, None]
        spread = _room(ctx.shape, gradient, ctx.layout)
        if not _has_kernels(gradient, ctx.layout):
            return spread.copy_(share)
        # The only cell of a map, for all cells.
        return _moved(share.contiguous(), spread, read=(0, 0))


def _moved(
    source: Tensor,
    target: Tensor,
    *,
    chosen: tuple[int, int] = (1, 1),
    read: tuple[int, int] = (1, 1),
) -> Tensor:
    """The target with cells of the source; see ``Steps``."""
    from clove_ssl.layers.layout_kernels import Steps, move_cells

    moved: Tensor = move_cells(source, target, Steps(chosen, read))
    return moved


def _room(shape: Sequence[int], like: Tensor, layout: torch.memory_format) -> Tensor:
    """Memory for maps of this shape and layout, or for their gradient."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=layout)
