"""Triton kernels that scale rows to length 1, and back; import only where Triton is installed.

torch converts, squares, sums, divides and converts again in kernels of their own, forward and
backward. Here a row is read once and written once each way.

Rows of C values may lie apart: G of them follow each other without a gap, then the next G start
``stride`` values after the first. What is written has no gaps.
"""
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # values of one program
SHORTEST = 1e-12  # a row shorter than this is divided by this, as torch does


@triton.jit
def _places(rows, stride, G, channels, R: tl.constexpr, C: tl.constexpr):
    """Where the values of a tile lie with gaps and without, and which of them exist."""
    # 64 bits, since rows times channels may pass 2^31.
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    channel = tl.arange(0, C)
    apart = (row // G) * stride + (row % G) * channels
    mask = (row < rows)[:, None] & (channel < channels)[None, :]
    return (
        apart[:, None] + channel[None, :],
        (row * channels)[:, None] + channel[None, :],
        mask,
    )


@triton.jit
def _length(value, shortest):
    return tl.maximum(tl.sqrt(tl.sum(value * value, 1)), shortest)[:, None]


@triton.jit(do_not_specialize=["rows", "stride"])
def _scale(
    x,
    out,
    rows,
    stride,
    shortest,
    divisor,
    G: tl.constexpr,
    channels: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """out = x / |x| / divisor."""
    apart, dense, mask = _places(rows, stride, G, channels, R, C)
    value = tl.load(x + apart, mask=mask, other=0.0).to(tl.float32)
    value = value / _length(value, shortest) / divisor
    tl.store(out + dense, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "stride"])
def _scale_back(
    x,
    outer,
    inner,
    rows,
    stride,
    shortest,
    divisor,
    G: tl.constexpr,
    channels: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    """Gradient of x: what of the outer one is at right angles to x, divided by the length."""
    apart, dense, mask = _places(rows, stride, G, channels, R, C)
    value = tl.load(x + apart, mask=mask, other=0.0).to(tl.float32)
    pull = tl.load(outer + dense, mask=mask, other=0.0).to(tl.float32) / divisor
    length = _length(value, shortest)
    unit = value / length
    along = tl.sum(unit * pull, 1)[:, None]
    # A row that was divided by a constant has no direction to keep.
    along = tl.where(length > shortest, along, 0.0)
    tl.store(inner + dense, ((pull - unit * along) / length).to(inner.dtype.element_ty), mask=mask)


class UnitRows(torch.autograd.Function):
    """Rows (..., C) of length 1 / divisor, in another type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, divisor: float, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x)
        ctx.divisor = divisor
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        _launch(_scale, x, (out,), divisor)
        return out

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        inner = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _launch(_scale_back, x, (outer.contiguous(), inner), ctx.divisor)
        return inner, None, None


def fits(x: Tensor) -> bool:
    """Whether the rows (..., C) of x lie in memory as said above."""
    return x.is_contiguous() or _has_gaps(x)


def _has_gaps(x: Tensor) -> bool:
    """Whether (..., G, C) has the G rows of one place without a gap, and places evenly apart."""
    if x.ndim < 3 or x.stride(-1) != 1 or x.stride(-2) != x.shape[-1]:
        return False
    places = range(x.ndim - 3)
    return all(x.stride(axis) == x.stride(axis + 1) * x.shape[axis + 1] for axis in places)


def _launch(kernel: Any, x: Tensor, others: tuple[Tensor, ...], divisor: float) -> None:
    """Run a kernel over all rows of x."""
    channels = x.shape[-1]
    together, stride = (1, channels) if x.is_contiguous() else (x.shape[-2], x.stride(-3))
    rows, width = x.numel() // channels, triton.next_power_of_2(channels)
    tall = max(1, TILE // width)
    kernel[(triton.cdiv(rows, tall),)](
        x, *others, rows, stride, SHORTEST, divisor, G=together, channels=channels, R=tall, C=width
    )
