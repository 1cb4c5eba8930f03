"""A few steps of a method in one of several processes, and everything worth comparing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from builders.batches.two_views import share_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clove_ssl.layers.normalization import synchronize_norms
from clove_ssl.methods.base import Method, Progress
from clove_ssl.views.batch import ViewBatch


def train_share(
    method: Method,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[ViewBatch],
    *,
    rank: int,
    processes: int,
) -> dict[str, Any]:
    """Steps on the share of each batch that a process has, with synchronized norms."""
    model: nn.Module = method
    if processes > 1:
        synchronize_norms(method, "cpu")
        model = DistributedDataParallel(method, broadcast_buffers=False)
    losses, gradients = [], {}
    for step, batch in enumerate(batches):
        output = model(share_of(batch, rank, processes), Progress(step, 10))
        optimizer.zero_grad()
        output.loss.backward()
        gradients = {n: p.grad.clone() for n, p in method.named_parameters() if p.grad is not None}
        optimizer.step()
        method.after_step(Progress(step, 10))
        losses.append(output.loss.detach())
    return {"losses": torch.stack(losses), "gradients": gradients, "state": method.state_dict()}
