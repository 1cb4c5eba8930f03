"""Launches of the kernels, and the gradients they give; import only where Triton is installed.

Dimensions: B images, C channels, H x W cells, h x w cells behind the pooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.layers.fused_norm import kernels

TILE = 4096  # values of one program at a time; larger ones run out of registers
SUMMED_TILE = 2048  # two running sums take as much room again
PROGRAMS = 1056  # eight for each of 132 multiprocessors; sums are split among so many
PARTS_AT_ONCE = 64


@dataclass(frozen=True)
class Shape:
    """How a map lies in memory and is cut into tiles."""

    rows: int
    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, features: Tensor) -> Shape:
        images, channels, height, width = features.shape
        return cls(images * height * width, channels, height, width)

    @property
    def block(self) -> int:
        """Channels of a tile."""
        return min(128, 1 << (self.channels - 1).bit_length())

    @property
    def blocks(self) -> int:
        """Tiles side by side."""
        return _parts(self.channels, self.block)

    def rows_of(self, tile: int) -> int:
        """Rows of a tile of so many values."""
        return max(1, tile // self.block)

    @property
    def stretch(self) -> int:
        """Rows that one program sums."""
        step = self.rows_of(SUMMED_TILE)
        wanted = _parts(self.rows * self.blocks, PROGRAMS)
        return _parts(max(wanted, 4 * step), step) * step

    @property
    def parts(self) -> int:
        """Programs that share the rows of a channel."""
        return _parts(self.rows, self.stretch)

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width behind the pooling."""
        return (self.height + 1) // 2, (self.width + 1) // 2

    def tiles(self, rows: int) -> tuple[int, int]:
        """The grid of a kernel that goes over so many rows in tiles."""
        return _parts(rows, self.rows_of(TILE)), self.blocks


def _parts(whole: int, size: int) -> int:
    """How many parts of a size cover a whole."""
    return -(-whole // size)


class NormActivation(torch.autograd.Function):
    """Batch norm by the statistics of the batch, then a sum, a ReLU or a pooling of it."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,  # (B, C, H, W), channels last
        side: Tensor | None,  # the same, or nothing to add
        weight: Tensor | None,  # (C,)
        bias: Tensor | None,  # (C,)
        norm: _BatchNorm,  # whose running statistics follow
        relu: bool,
        pools: bool,
    ) -> Tensor:
        shape = Shape.of(features)
        mean, scale = _moments(features, shape, norm)
        affine = (weight, bias) if weight is not None and bias is not None else (mean, mean)
        options = {"CHANNELS": shape.channels, "AFFINE": weight is not None, "C": shape.block}
        tall, wide = shape.pooled if pools else (shape.height, shape.width)
        out = torch.empty(
            (len(features), shape.channels, tall, wide),
            dtype=features.dtype,
            device=features.device,
            memory_format=torch.channels_last,
        )
        rows = len(features) * tall * wide
        winners = None
        if pools:
            winners = torch.empty_like(out, dtype=torch.uint8)
            kernels.pool[shape.tiles(2 * rows)](
                features, out, winners, mean, scale, *affine, rows, shape.height, shape.width,
                tall, wide, **options, R=shape.rows_of(TILE // 2),
            )  # fmt: skip
        else:
            kernels.normalize[shape.tiles(rows)](
                features, side if side is not None else features, out, mean, scale, *affine, rows,
                **options, SIDE=side is not None, RELU=relu, R=shape.rows_of(TILE),
            )  # fmt: skip
        needed = out if side is not None and relu else winners
        ctx.save_for_backward(features, weight, bias, mean, scale, needed)
        ctx.kind = (side is not None, relu, pools)
        return out

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, bias, mean, scale, needed = ctx.saved_tensors
        has_side, relu, pools = ctx.kind
        shape = Shape.of(features)
        outer = outer.contiguous(memory_format=torch.channels_last)
        affine = (weight, bias) if weight is not None else (mean, mean)
        options = {
            "CHANNELS": shape.channels,
            "AFFINE": weight is not None,
            "POOL": pools,
            "C": shape.block,
        }
        sizes = (shape.height, shape.width, *shape.pooled)
        side_gradients = torch.empty_like(outer) if has_side else outer
        table = mean.new_empty(shape.parts, 2, shape.channels)
        kernels.gradient_sums[(shape.parts, shape.blocks)](
            features, outer, needed if needed is not None else outer, side_gradients, table, mean,
            scale, *affine, shape.rows, shape.stretch, *sizes, **options, SIDE=has_side, RELU=relu,
            R=shape.rows_of(SUMMED_TILE),
        )  # fmt: skip
        for_weight, for_bias, level, slope = mean.new_empty(4, shape.channels)
        kernels.slopes[(shape.blocks,)](
            table, scale, for_weight, for_bias, level, slope, shape.parts, shape.rows,
            CHANNELS=shape.channels, P=PARTS_AT_ONCE, C=shape.block,
        )  # fmt: skip
        inner = torch.empty_like(features)
        kernels.input_gradients[shape.tiles(shape.rows)](
            features, side_gradients, needed if pools else outer, inner, mean, scale, *affine,
            level, slope, shape.rows, *sizes, **options, RELU=relu and not has_side,
            R=shape.rows_of(TILE),
        )  # fmt: skip
        side_gradient = side_gradients if has_side else None
        if weight is None:
            return inner, side_gradient, None, None, None, None, None
        return inner, side_gradient, for_weight, for_bias, None, None, None


def _moments(features: Tensor, shape: Shape, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of every channel, (C,) each."""
    assert norm.running_mean is not None, "the caller has looked"
    table = norm.running_mean.new_empty(shape.parts, 2, shape.channels)
    kernels.sums[(shape.parts, shape.blocks)](
        features, table, shape.rows, shape.stretch, CHANNELS=shape.channels,
        R=shape.rows_of(SUMMED_TILE), C=shape.block,
    )  # fmt: skip
    mean, scale = norm.running_mean.new_empty(2, shape.channels)
    kernels.moments[(shape.blocks,)](
        features, table, mean, scale, norm.running_mean, norm.running_var,
        norm.num_batches_tracked, shape.parts, shape.rows, norm.eps, norm.momentum,
        CHANNELS=shape.channels, P=PARTS_AT_ONCE, C=shape.block,
    )  # fmt: skip
    return mean, scale
