"""Launches of the kernels, and the gradients they give; import only where Triton is installed.

Dimensions: B images, C channels, H x W cells, h x w cells behind the pooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.layers.fused_norm import kernels, pooled_kernels
from clove_ssl.layers.fused_norm.activation import Sums

TILE = 4096  # values of one program at a time; larger ones run out of registers
SUMMED_TILE = 2048  # two running sums take room beside them
POOLED_TILE = 512  # each stands for a window with four cells of its own
PROGRAMS = 528  # four for each of 132 multiprocessors; sums are split among so many
SHAFT_PROGRAMS = 4224  # 32 for each; windows are split among at least so many
LEAST_LINES = 4  # of windows that a program goes down, since it has to be started for them
TILES_AT_ONCE = 4  # one that is added and those on their way, while sums are taken
PARTS_AT_ONCE = 256  # of sums that are added up, so that few loads wait for each other
LAST_BLOCK = 16  # channels of a program that adds up such sums


@dataclass(frozen=True)
class Shape:
    """How a map lies in memory and is cut into tiles."""

    images: int
    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, features: Tensor) -> Shape:
        images, channels, height, width = features.shape
        return cls(images, channels, height, width)

    @property
    def rows(self) -> int:
        """Cells of all maps."""
        return self.images * self.height * self.width

    @property
    def block(self) -> int:
        """Channels of a tile: few sizes, as every one is compiled on its own."""
        return min(64, 1 << (self.channels - 1).bit_length())

    @property
    def blocks(self) -> int:
        """Tiles side by side."""
        return _parts(self.channels, self.block)

    def rows_of(self, tile: int) -> int:
        """Rows of a tile of so many values."""
        return max(1, tile // self.block)

    def stretch(self, rows: int) -> int:
        """Rows that one program sums, of so many."""
        # Four tiles at least: below that, starting a program takes longer than what it sums.
        step = self.rows_of(SUMMED_TILE)
        wanted = _parts(rows * self.blocks, PROGRAMS)
        return _parts(max(wanted, 4 * step), step) * step

    def parts(self, rows: int) -> int:
        """Programs that share the rows of a channel."""
        return _parts(rows, self.stretch(rows))

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width behind the pooling."""
        return (self.height + 1) // 2, (self.width + 1) // 2

    @property
    def chunks(self) -> int:
        """Programs that share a shaft of windows."""
        height, width = self.pooled
        shafts = _parts(self.images * width, self.rows_of(POOLED_TILE)) * self.blocks
        lines = max(LEAST_LINES, shafts * height // SHAFT_PROGRAMS)
        return _parts(height, lines)

    @property
    def lines(self) -> int:
        """Lines of windows that one program goes down: as many as others do, and never none."""
        return _parts(self.pooled[0], self.chunks)

    @property
    def shafts(self) -> tuple[int, int]:
        """The grid of a kernel that goes down shafts of windows."""
        tiles = _parts(self.images * self.pooled[1], self.rows_of(POOLED_TILE))
        return tiles * self.chunks, self.blocks

    def tiles(self, rows: int) -> tuple[int, int]:
        """The grid of a kernel that goes over so many rows in tiles."""
        return _parts(rows, self.rows_of(TILE)), self.blocks


def _parts(whole: int, size: int) -> int:
    """How many parts of a size cover a whole."""
    return -(-whole // size)


class Channels(NamedTuple):
    """What a norm does to each channel, (C,) all."""

    mean: Tensor
    scale: Tensor  # 1 / standard deviation
    weight: Tensor | None
    bias: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All four; where there is no weight, something that a kernel gets and does not read."""
        if self.weight is None or self.bias is None:
            return self.mean, self.scale, self.mean, self.mean
        return self.mean, self.scale, self.weight, self.bias

    def options(self, shape: Shape) -> dict[str, Any]:
        """What kernels that read them are compiled for."""
        return {
            "channels": shape.channels,
            "AFFINE": self.weight is not None and self.bias is not None,
            "C": shape.block,
        }


class NormActivation(torch.autograd.Function):
    """Batch norm by the statistics of the batch, then a sum or a ReLU or both.

    Behind a sum the map is handed over twice, in the same memory, since a block ends there: the
    next one's convolution takes the one and its shortcut the other, and their gradients come apart.
    Either may go unused.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,  # (B, C, H, W), channels last
        side: Tensor | None,  # the same, or nothing to add
        weight: Tensor | None,  # (C,)
        bias: Tensor | None,  # (C,)
        norm: _BatchNorm,  # whose running statistics follow
        relu: bool,
    ) -> Tensor | tuple[Tensor, Tensor]:
        shape = Shape.of(features)
        channels = Channels(*_moments(_sums(features, shape), shape, norm), weight, bias)
        out = torch.empty_like(features)
        kernels.normalize[shape.tiles(shape.rows)](
            features, side if side is not None else features, out, *channels.tensors, shape.rows,
            **channels.options(shape), SIDE=side is not None, RELU=relu, R=shape.rows_of(TILE),
        )  # fmt: skip
        # The ReLU's mask follows from the input alone, unless something was added to it. What is
        # not needed is not kept: it would stay in memory until the backward pass.
        ctx.save_for_backward(features, *channels, out if side is not None and relu else None)
        ctx.kind = (side is not None, relu)
        # Whoever does not use a map gives no gradient, rather than a map of zeros to be added.
        ctx.set_materialize_grads(False)
        return out if side is None else (out, out.detach())

    @staticmethod
    def backward(ctx: Any, *outer_gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        features, *saved, out = ctx.saved_tensors
        shape, channels = Shape.of(features), Channels(*saved)
        has_side, relu = ctx.kind
        given = _given(outer_gradients)
        if not given:
            return (None,) * 6
        # The same one unless there are two: a kernel needs some pointer, and reads it only if TWO.
        outer, other = given[0], given[-1]
        # The names of two steps in one: with a side ``input_gradients`` reads what
        # ``gradient_sums`` wrote.
        side_gradients = torch.empty_like(outer) if has_side else outer
        parts = shape.parts(shape.rows)
        table = channels.mean.new_empty(parts, 2, shape.channels)
        kernels.gradient_sums[(parts, shape.blocks)](
            features, outer, other, out if out is not None else outer, side_gradients, table,
            *channels.tensors, shape.rows, shape.stretch(shape.rows), **channels.options(shape),
            SIDE=has_side, TWO=len(given) == 2, RELU=relu, R=shape.rows_of(SUMMED_TILE),
            STAGES=TILES_AT_ONCE,
        )  # fmt: skip
        learned, level_and_slope = _slopes(table, shape, channels)
        inner = torch.empty_like(features)
        kernels.input_gradients[shape.tiles(shape.rows)](
            features, side_gradients, inner, *channels.tensors, *level_and_slope, shape.rows,
            # With a side the ReLU was taken into account already.
            **channels.options(shape), RELU=relu and not has_side, R=shape.rows_of(TILE),
        )  # fmt: skip
        return inner, side_gradients if has_side else None, *learned, None, None


class NormPool(torch.autograd.Function):
    """Batch norm by the statistics of the batch, a ReLU, and a 3 x 3 pooling of every two cells."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,  # (B, C, H, W), channels last
        weight: Tensor | None,  # (C,)
        bias: Tensor | None,  # (C,)
        norm: _BatchNorm,  # whose running statistics follow
        sums: Sums | None,  # of features; taken here if nobody has them
    ) -> Tensor:
        shape = Shape.of(features)
        sums = _sums(features, shape) if sums is None else sums
        channels = Channels(*_moments(sums, shape, norm), weight, bias)
        out = torch.empty(
            (len(features), shape.channels, *shape.pooled),
            dtype=features.dtype,
            device=features.device,
            memory_format=torch.channels_last,
        )
        winners = torch.empty_like(out, dtype=torch.uint8)  # which of nine cells
        pooled_kernels.pool[shape.shafts](
            features, out, winners, *channels.tensors, shape.images, shape.height, shape.width,
            shape.chunks, shape.lines, **channels.options(shape), R=shape.rows_of(POOLED_TILE),
        )  # fmt: skip
        ctx.save_for_backward(features, *channels, out, winners)
        return out

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        features, *saved, out, winners = ctx.saved_tensors
        shape, channels = Shape.of(features), Channels(*saved)
        (outer,) = _given((outer,))
        cells = out[:, 0].numel()
        parts = shape.parts(cells)
        table = channels.mean.new_empty(parts, 2, shape.channels)
        pooled_kernels.pooled_gradient_sums[(parts, shape.blocks)](
            features, outer, out, winners, table, channels.mean, cells, shape.stretch(cells),
            shape.height, shape.width, *shape.pooled, channels=shape.channels,
            R=shape.rows_of(SUMMED_TILE), C=shape.block,
        )  # fmt: skip
        learned, level_and_slope = _slopes(table, shape, channels)
        inner = torch.empty_like(features)
        pooled_kernels.pooled_input_gradients[shape.shafts](
            features, outer, winners, inner, *channels.tensors, *level_and_slope, shape.images,
            shape.height, shape.width, shape.chunks, shape.lines, **channels.options(shape),
            R=shape.rows_of(POOLED_TILE),
        )  # fmt: skip
        return inner, *learned, None, None


def _given(gradients: tuple[Tensor | None, ...]) -> list[Tensor]:
    """The gradients that users of a map gave, channels last."""
    # Autograd may hand over one that is expanded or laid out otherwise, such as that of a mean.
    there = [each for each in gradients if each is not None]
    return [each.contiguous(memory_format=torch.channels_last) for each in there]


def _sums(features: Tensor, shape: Shape) -> Sums:
    """Sums of values and of their squares, by programs that share them out."""
    parts = shape.parts(shape.rows)
    # Uninitialised: every part writes all of its channels.
    table = features.new_empty((parts, 2, shape.channels), dtype=torch.float32)
    kernels.sums[(parts, shape.blocks)](
        features, table, shape.rows, shape.stretch(shape.rows), channels=shape.channels,
        R=shape.rows_of(SUMMED_TILE), C=shape.block, STAGES=TILES_AT_ONCE,
    )  # fmt: skip
    return Sums(table, level=features)  # whose first row the kernels read


def _moments(sums: Sums, shape: Shape, norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation of every channel, (C,) each."""
    assert norm.running_mean is not None, "the caller has looked"
    mean, scale = norm.running_mean.new_empty(2, shape.channels)
    kernels.moments[(_parts(shape.channels, LAST_BLOCK),)](
        sums.level, sums.table, mean, scale, norm.running_mean, norm.running_var,
        norm.num_batches_tracked, len(sums.table), shape.rows, norm.eps, norm.momentum,
        channels=shape.channels, P=PARTS_AT_ONCE, C=LAST_BLOCK,
    )  # fmt: skip
    return mean, scale


def _slopes(
    table: Tensor, shape: Shape, channels: Channels
) -> tuple[tuple[Tensor | None, Tensor | None], tuple[Tensor, Tensor]]:
    """Gradients of weight and bias, and what ``store_gradients`` takes off others; (C,) each."""
    for_weight, for_bias, level, slope = channels.mean.new_empty(4, shape.channels)
    kernels.slopes[(_parts(shape.channels, LAST_BLOCK),)](
        table, channels.scale, for_weight, for_bias, level, slope, len(table), shape.rows,
        channels=shape.channels, P=PARTS_AT_ONCE, C=LAST_BLOCK,
    )  # fmt: skip
    learned = (None, None) if channels.weight is None else (for_weight, for_bias)
    return learned, (level, slope)
