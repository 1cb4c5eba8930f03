"""Counts that losses are divided by, when several processes share a batch.

Gradients are averaged over processes. A process that divided by its own count would therefore
give its regions a weight that depends on where they landed; dividing by the mean count of all
processes gives every region the weight it has in a single process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.methods import queue


def mean_over_processes(counts: Tensor) -> Tensor:
    """The mean of ``counts`` over all processes, in float64; no gradient flows through it."""
    return queue.mean_over_processes(counts.to(torch.float64))
