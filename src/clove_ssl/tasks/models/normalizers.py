"""Counts that losses are divided by, when several processes share a batch.

Gradients are averaged over processes. A process that divided by its own count would therefore
give its regions a weight that depends on where they landed; dividing by the mean count of all
processes gives every region the weight it has in a single process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def mean_over_processes(counts: Tensor) -> Tensor:
    """The mean of ``counts`` over all processes, in float64; no gradient flows through it."""
    means = counts.detach().to(torch.float64)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        means = means.clone()
        dist.all_reduce(means)
        means /= dist.get_world_size()
    return means
