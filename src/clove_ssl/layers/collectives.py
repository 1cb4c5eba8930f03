"""What the processes of a run tell each other inside a step.

All processes must call these functions, in the same order, with tensors of equal shape. A single
process keeps what it has.

Dimensions: B rows of a process, R = B times the processes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo


# Asked anew each time: a method is built before processes join, and used after that.
def processes() -> int:
    """How many processes share the work."""
    return dist.get_world_size() if _joined() else 1


def rank() -> int:
    """Which of them this one is, from 0."""
    return dist.get_rank() if _joined() else 0


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


@_disable_dynamo  # torch.compiler.disable would import torch's compiler here and now
def sum_with_gradient(values: Tensor) -> Tensor:
    """The sum over processes, never compiled: torch 2.11 would get its gradients wrong."""
    if processes() == 1:
        return values
    total: Tensor = _Sum.apply(values)
    return total


def gather_rows(rows: Tensor) -> Tensor:
    """(B, ...) of every process in rank order, (R, ...), without a gradient."""
    return rows if processes() == 1 else _gathered(rows)


def gather_with_gradient(rows: Tensor) -> Tensor:
    """(B, ...) of every process in rank order, (R, ...).

    A loss on the gathered rows is computed by every process. Gradients are those
    of the sum of these losses, which averaging over processes (as data-parallel
    training does) turns into the gradient of one.
    """
    if processes() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows)
    return gathered


def mean_over_processes(values: Tensor) -> Tensor:
    """The mean of a tensor over all processes, without a gradient."""
    return gather_rows(values.detach()[None]).mean(0)


def mean_count(counts: Tensor) -> Tensor:
    """What to divide a sum of losses by: the mean of counts over all processes, in float64.

    Gradients are averaged over processes. A process that divided by its own count would give its
    regions a weight that depends on where they landed; with the mean count every region has the
    weight it has in a single process.
    """
    return mean_over_processes(counts.to(torch.float64))


class _Sum(torch.autograd.Function):
    """All-reduce whose gradient is all-reduced too: every process uses every sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return _summed(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _summed(grads[0])


class _Gather(torch.autograd.Function):
    """All-gather whose gradient is summed over the processes that used it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return _gathered(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # What all processes say about the rows of this one.
        return _summed(grads[0].contiguous()).chunk(processes())[rank()]


def _gathered(rows: Tensor) -> Tensor:
    rows = rows.contiguous()
    parts = [torch.empty_like(rows) for _ in range(processes())]
    dist.all_gather(parts, rows)
    return torch.cat(parts)


def _summed(values: Tensor) -> Tensor:
    total = values.clone()
    dist.all_reduce(total)
    return total
