"""Attention whose backward pass repeats itself bit for bit without forming the scores.

Maps of few cells have kernels of our own, one program for each head of an image, which add up
everything in a fixed order and do not fill up tiles made for long sequences.

For larger maps fused kernels add up the gradients of queries in any order. The flash kernel has an
order of its own for those who ask for it, which torch lets it take only where every operation has
to be repeatable without exception. A run asks for less, since other operations have no such kernel;
so the backward pass asks for more while it starts this one.

Dimensions: B images, H heads, L cells, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from clove_ssl.layers.fused_norm.activation import has_triton

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_backward
MOST_CHANNELS = 256  # of a head, for the flash kernel


def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Mix values by the softmax of products, all (B, H, L, C), without a scale."""
    if _has_few_cells(queries, keys, values):
        return _attend_in_one_go(queries, keys, values)
    if _needs_repeatable_kernel(queries, keys, values):
        mixed: Tensor = _RepeatableFlash.apply(queries, keys, values)
        return mixed
    return F.scaled_dot_product_attention(queries, keys, values, scale=1.0)


def _has_few_cells(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether a kernel of ours can hold all scores of a head at once."""
    if not (_is_for_tensor_cores(queries, keys, values) and has_triton()):
        return False
    from clove_ssl.layers.attention_kernel import fits

    return fits(queries, keys, values)


def _attend_in_one_go(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    # Here, since importing the kernels needs Triton, which a CPU installation does not have.
    from clove_ssl.layers.attention_kernel import FewCells

    mixed: Tensor = FewCells.apply(queries, keys, values)
    return mixed


def _needs_repeatable_kernel(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether torch would form the scores to be repeatable, where the flash kernel need not."""
    return (
        torch.are_deterministic_algorithms_enabled()
        and _is_for_tensor_cores(queries, keys, values)
        and queries.shape[-1] % 8 == 0
        and queries.shape[-1] <= MOST_CHANNELS
    )


def _is_for_tensor_cores(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether fused kernels of half precision exist here.

    A compiler joins the products with what surrounds them, and is left alone.
    """
    return (
        queries.is_cuda
        and queries.dtype in (torch.float16, torch.bfloat16)
        and queries.dtype == keys.dtype == values.dtype
        and not torch.compiler.is_compiling()
        and torch.cuda.get_device_capability(queries.device) >= (8, 0)
    )


class _RepeatableFlash(torch.autograd.Function):
    """The flash kernel, with the backward pass in its fixed order."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        mixed, sums, *rest = _FLASH(queries, keys, values, 0.0, False, scale=1.0)
        # The first two are for ragged batches, then come the lengths and the state of a dropout.
        ctx.lengths, (seed, offset) = rest[:4], rest[4:6]
        ctx.save_for_backward(queries, keys, values, mixed, sums, seed, offset)
        result: Tensor = mixed
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, values, mixed, sums, seed, offset = ctx.saved_tensors
        with _without_exceptions():
            found: tuple[Tensor, Tensor, Tensor] = _FLASH_BACKWARD(
                *(gradient, queries, keys, values, mixed, sums, *ctx.lengths),
                *(0.0, False, seed, offset),
                scale=1.0,
            )
        return found


@contextmanager
def _without_exceptions() -> Iterator[None]:
    """Operations that cannot repeat themselves fail inside, where a run only warns of them."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
