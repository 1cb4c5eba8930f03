"""Numbers in fp32 or better, which losses, statistics and boxes need where networks do not."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_fp32(values: Tensor) -> Tensor:
    """The values in fp32, or in float64 if they are."""
    # Asked without torch, to which it would be one more operation.
    return converted(values, torch.float64 if values.dtype == torch.float64 else torch.float32)


def all_at_least_fp32(first: Tensor, *others: Tensor) -> list[Tensor]:
    """Tensors in the type that :func:`at_least_fp32` gives the first of them."""
    wide = at_least_fp32(first)
    return [wide, *(other.to(wide.dtype) for other in others)]


def converted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in another type.

    Where there is nothing to convert, a compiled ``to`` of torch 2.11 loses all gradients.
    """
    return values if values.dtype == dtype else values.to(dtype)
