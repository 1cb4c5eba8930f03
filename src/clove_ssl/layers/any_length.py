"""Tensors whose first axis is of another length in every step, for code that is compiled."""

from __future__ import annotations

import torch._dynamo
from torch import Tensor


def mark_any_length(tensor: Tensor) -> Tensor:
    """Let one graph serve all lengths of the first axis from 2 on; the same tensor.

    Lengths of 0 and 1 are cases of their own for torch's compiler, and get graphs of their own.
    """
    if len(tensor) > 1:
        torch._dynamo.mark_dynamic(tensor, 0)
    return tensor


def has_any_length(tensor: Tensor) -> bool:
    """Whether a tensor is so marked."""
    return 0 in getattr(tensor, "_dynamo_dynamic_indices", ())
