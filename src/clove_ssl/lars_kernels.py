"""LARS in three kernels for any number of tensors; import only where Triton is installed.

torch's operations on lists carry all weights through memory once each, and LARS takes seven of
them, beside dozens of small ones for norms and ratios. Here weights and gradients are read twice:

    squares (read, read)  -> ratios  -> update (read, read, read, write, write)

A tensor is a row of numbers, in whatever order they lie, and is cut into chunks; a program takes
one of them. The sums of a chunk have a place of their own and are added up in a fixed order, so the
same numbers always give the same bits.

Dimensions: T tensors, N chunks of all of them.
"""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from clove_ssl.layers.transfers import send

CHUNK = 4096  # values of a program; three of each are held in registers
WARPS = 8
SUMS_AT_ONCE = 1024  # of the chunks of a tensor, so that few loads wait for each other
LINE = 16  # bytes that a thread reads or writes at once


def fits(weights: Sequence[Tensor], gradients: Sequence[Tensor], buffers: Sequence[Tensor]) -> bool:
    """Whether the kernels can take these tensors; there may be no buffers."""
    return (
        all(tensor.dtype == torch.float32 for tensor in (*weights, *gradients, *buffers))
        and all(map(_lie_alike, weights, gradients))
        and all(map(_lie_alike, weights, buffers))
        # Asked of these alone: gradients may be parts of one message to all processes.
        and all(tensor.data_ptr() % LINE == 0 for tensor in (*weights, *buffers))
    )


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    """Whether tensors of one shape fill their memory without gaps, and in the same order."""
    # Not by strides: those of dimensions of size 1 mean nothing, and differ for 1 x 1 convolutions.
    return any(
        one.is_contiguous(memory_format=order) and other.is_contiguous(memory_format=order)
        for order in (torch.contiguous_format, torch.channels_last)
    )


class TensorList:
    """Tensors that are updated together, with tables that tell the kernels where they lie.

    A table is sent again only if something has moved. Weights and buffers stay where they are, and
    so do gradients in captured steps.
    """

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._addresses: list[tuple[int, ...]] = []  # of each weight, its gradient and its buffer

    def update(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        buffers: Sequence[Tensor],  # none without momentum
        *,
        layerwise: bool,
        lr: float,
        momentum: float,
        weight_decay: float,
        trust: float,
        eps: float,
    ) -> None:
        """One step of tensors that fit; without ``layerwise`` there is no decay and no ratio."""
        self._find(weights, gradients, buffers or weights)  # instead of buffers, and not read
        if self._count == 0:
            return
        ratios = torch.empty(len(weights), device=weights[0].device)
        options = {"ALIGNED": self._aligned, "CHUNK": CHUNK, "num_warps": WARPS}
        if layerwise:
            sums = ratios.new_empty(self._count, 2)
            _squares[(self._count,)](
                self._places, *self._chunks, sums, float(weight_decay), **options
            )
            _ratios[(len(weights),)](
                sums, self._chunks[1], ratios, float(trust), float(eps), AT_ONCE=SUMS_AT_ONCE
            )
        _update[(self._count,)](
            self._places, *self._chunks, ratios, float(weight_decay), float(momentum), float(lr),
            LAYERWISE=layerwise, MOMENTUM=len(buffers) > 0, **options,
        )  # fmt: skip
        # What a kernel writes to a bare address escapes autograd, which could no longer tell that a
        # backward pass comes too late.
        torch.autograd.graph.increment_version([*weights, *buffers])

    def _find(self, *kinds: Sequence[Tensor]) -> None:
        """Bring the tables up to date with weights, gradients and buffers."""
        device = kinds[0][0].device
        lengths = [weight.numel() for weight in kinds[0]]
        if lengths != self._lengths:
            self._lengths, self._chunks = lengths, _cut(lengths, device)
            self._count = len(self._chunks[0])
        addresses = [tuple(each.data_ptr() for each in same) for same in zip(*kinds, strict=True)]
        if addresses != self._addresses:
            self._addresses = addresses
            self._places = send(addresses, device, dtype=torch.int64)  # (T, 3)
            self._aligned = all(gradient % LINE == 0 for _, gradient, _ in addresses)


def _cut(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Whose each chunk is (N,), at which chunk each tensor begins (T + 1,), and lengths (T,)."""
    counts = [triton.cdiv(length, CHUNK) for length in lengths]
    owners = [tensor for tensor, count in enumerate(counts) for _ in range(count)]
    firsts = [0, *accumulate(counts)]
    return (
        send(owners, device, dtype=torch.int32),
        send(firsts, device, dtype=torch.int32),
        send(lengths, device, dtype=torch.int64),
    )


@triton.jit
def _own_chunk(owners, firsts, lengths, CHUNK: tl.constexpr):
    """Tensor of this program, where its chunk begins, and how much of the tensor is left there."""
    chunk = tl.program_id(0)
    tensor = tl.load(owners + chunk)
    start = (chunk - tl.load(firsts + tensor)).to(tl.int64) * CHUNK
    return tensor, start, tl.load(lengths + tensor) - start


@triton.jit
def _place(places, tensor, start, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    """Where numbers of a tensor lie; the kinds are weights, gradients and buffers."""
    place = tl.load(places + 3 * tensor + KIND).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        # Only then may a thread take four values at once.
        place = tl.multiple_of(place, 16)
    return place + start


@triton.jit
def _squares(
    places,
    owners,
    firsts,
    lengths,
    sums,
    decay,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Sums of squares of the weights of a chunk, and of its gradients with their decay."""
    tensor, start, rest = _own_chunk(owners, firsts, lengths, CHUNK)
    weights = _place(places, tensor, start, 0, True)
    gradients = _place(places, tensor, start, 1, ALIGNED)
    sums += 2 * tl.program_id(0)
    # Twice, as a mask that may end anywhere lets a thread take only one value at a time.
    if rest >= CHUNK:
        _squares_of(weights, gradients, sums, rest, decay, True, CHUNK)
    else:
        _squares_of(weights, gradients, sums, rest, decay, False, CHUNK)


@triton.jit
def _squares_of(weights, gradients, sums, rest, decay, WHOLE: tl.constexpr, CHUNK: tl.constexpr):
    value = tl.arange(0, CHUNK)
    there = (value < rest) | WHOLE
    weight = tl.load(weights + value, mask=there, other=0.0)
    decayed = tl.load(gradients + value, mask=there, other=0.0) + decay * weight
    tl.store(sums, tl.sum(weight * weight))
    tl.store(sums + 1, tl.sum(decayed * decayed))


@triton.jit
def _ratios(sums, firsts, ratios, trust, eps, AT_ONCE: tl.constexpr):
    """The factor of a tensor's gradient, 1 where its weights or its gradient are all zero."""
    tensor = tl.program_id(0)
    weight = tl.zeros([AT_ONCE], tl.float32)
    decayed = tl.zeros([AT_ONCE], tl.float32)
    end = tl.load(firsts + tensor + 1)
    for start in range(tl.load(firsts + tensor), end, AT_ONCE):
        chunk = start + tl.arange(0, AT_ONCE)
        weight += tl.load(sums + 2 * chunk, mask=chunk < end, other=0.0)
        decayed += tl.load(sums + 2 * chunk + 1, mask=chunk < end, other=0.0)
    # Rounded as torch rounds them; there are few.
    weight_norm, norm = tl.sqrt_rn(tl.sum(weight)), tl.sqrt_rn(tl.sum(decayed))
    # A factor of 0 would freeze weights that start at zero for good.
    usable = (weight_norm > 0) & (norm > 0)
    ratio = tl.div_rn(trust * weight_norm, tl.where(usable, norm + eps, 1.0))
    tl.store(ratios + tensor, tl.where(usable, ratio, 1.0))


@triton.jit
def _update(
    places,
    owners,
    firsts,
    lengths,
    ratios,
    decay,
    momentum,
    lr,
    LAYERWISE: tl.constexpr,
    MOMENTUM: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """New buffers and new weights of a chunk."""
    tensor, start, rest = _own_chunk(owners, firsts, lengths, CHUNK)
    weights = _place(places, tensor, start, 0, True)
    gradients = _place(places, tensor, start, 1, ALIGNED)
    buffers = _place(places, tensor, start, 2, True)
    ratio = 1.0
    if LAYERWISE:
        ratio = tl.load(ratios + tensor)
    if rest >= CHUNK:
        _update_of(
            weights, gradients, buffers, rest, ratio, decay, momentum, lr, True, LAYERWISE,
            MOMENTUM, CHUNK,
        )  # fmt: skip
    else:
        _update_of(
            weights, gradients, buffers, rest, ratio, decay, momentum, lr, False, LAYERWISE,
            MOMENTUM, CHUNK,
        )  # fmt: skip


@triton.jit
def _update_of(
    weights,
    gradients,
    buffers,
    rest,
    ratio,
    decay,
    momentum,
    lr,
    WHOLE: tl.constexpr,
    LAYERWISE: tl.constexpr,
    MOMENTUM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    value = tl.arange(0, CHUNK)
    there = (value < rest) | WHOLE
    weight = tl.load(weights + value, mask=there)
    update = tl.load(gradients + value, mask=there)
    if LAYERWISE:
        update = (update + decay * weight) * ratio
    if MOMENTUM:
        update += momentum * tl.load(buffers + value, mask=there)
        tl.store(buffers + value, update, mask=there)
    tl.store(weights + value, weight - lr * update, mask=there)
