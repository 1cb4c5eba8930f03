"""What torch's compiler has been told."""

from __future__ import annotations

import torch._functorch.config


def activation_memory_in_use() -> float:
    """The share of activations that graphs made now would keep."""
    return float(torch._functorch.config.activation_memory_budget)
