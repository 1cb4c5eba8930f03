"""Unit vectors, batch norm of another kind, and one whose statistics span all processes.

On CUDA torch's own ``nn.SyncBatchNorm`` does the work; it does not run on a
CPU, where the classes here take its place, so that a run on two CPU processes
normalises exactly like one on a single process with the whole batch.

Dimensions: B images, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.errors import UserError

Norm = TypeVar("Norm", bound=_BatchNorm)


def unit_vectors(tensor: Tensor, dim: int = -1) -> Tensor:
    """Scale to length 1 along ``dim``, in fp32 or better.

    In fp16 the guard of 1e-12 is zero, and a zero vector becomes NaN.
    """
    return F.normalize(tensor.to(torch.promote_types(tensor.dtype, torch.float32)), dim=dim)


def synchronize_norms(module: nn.Module, device_type: str) -> nn.Module:
    """Make every batch norm in ``module`` share its statistics between processes.

    Use the returned module; see :func:`replace_norms`.
    """
    return replace_norms(module, lambda norm: _synchronized(norm, device_type))


def replace_norms(module: nn.Module, make: Callable[[_BatchNorm], _BatchNorm]) -> nn.Module:
    """Put what ``make`` makes of it in the place of every batch norm in ``module``.

    Use the returned module: a batch norm that *is* the module cannot be changed
    in place.
    """
    if isinstance(module, _BatchNorm):
        return make(module)
    for name, child in module.named_children():
        setattr(module, name, replace_norms(child, make))
    return module


def remade(norm: _BatchNorm, kind: type[Norm]) -> Norm:
    """A layer of another kind made of the parameters and buffers of ``norm``.

    They stay the same objects, so it does not matter whether an optimizer or a teacher was made
    before.
    """
    layer = kind(
        norm.num_features,
        eps=norm.eps,
        momentum=norm.momentum,
        affine=norm.affine,
        track_running_stats=norm.track_running_stats,
    )
    # Whole dictionaries: the very same tensors under the same names, absent ones stay None.
    layer._parameters = norm._parameters
    layer._buffers = norm._buffers
    return layer.train(norm.training)


@torch.no_grad()
def track(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move the running statistics of ``norm`` towards those of a batch, both (C,)."""
    if norm.running_mean is None or norm.running_var is None:
        return
    assert norm.num_batches_tracked is not None  # comes with the running statistics
    norm.num_batches_tracked.add_(1)
    share = 1.0 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), share)


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce whose gradient is all-reduced too: every process uses every sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


class _Synchronized(_BatchNorm):
    """Batch norm with statistics over the batches of all processes, for CPU and gloo.

    Batches may differ in size. As with ``nn.SyncBatchNorm``, gradients are those
    of the sum of the processes' losses: the input's is complete, the affine
    parameters' is this process's share.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, ...) -> same shape."""
        if not self.training or not _several_processes():
            return super().forward(features)
        self._check_input_dim(features)  # type: ignore[no-untyped-call]
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        normalized = self._normalize(wide).movedim(-1, 1)  # (B, C, ...)
        return normalized.to(features.dtype)

    def _normalize(self, features: Tensor) -> Tensor:
        values = features.movedim(1, -1)  # (B, ..., C)
        rows = values.flatten(0, -2)  # (R, C)
        sums = _total(torch.cat([rows.sum(0), rows.new_tensor([len(rows)])]))  # (C + 1,)
        count = sums[-1].detach()
        if count <= 1:
            raise ValueError(f"batch norm needs more than 1 value per channel, got {count:.0f}")
        mean = sums[:-1] / count  # (C,)
        # A second pass: a variance from sums of squares loses digits where the mean is large.
        variance = _total((rows - mean).square().sum(0)) / count  # (C,)
        track(self, mean.detach(), variance.detach() * count / (count - 1))
        normalized = (values - mean) * (variance + self.eps).rsqrt()
        if self.affine:
            normalized = normalized * self.weight + self.bias
        return normalized


class SynchronizedBatchNorm1d(_Synchronized, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` over the batches of all processes."""


class SynchronizedBatchNorm2d(_Synchronized, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` over the batches of all processes."""


_CPU_KINDS: dict[type[nn.Module], type[_BatchNorm]] = {
    nn.BatchNorm1d: SynchronizedBatchNorm1d,
    nn.BatchNorm2d: SynchronizedBatchNorm2d,
}


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _total(values: Tensor) -> Tensor:
    total: Tensor = _SumOverProcesses.apply(values)
    return total


def _synchronized(norm: _BatchNorm, device_type: str) -> _BatchNorm:
    """``norm`` with statistics over all processes."""
    if isinstance(norm, nn.SyncBatchNorm | _Synchronized):
        return norm
    if type(norm) not in _CPU_KINDS:
        raise UserError(
            f"{type(norm).__name__} is not a plain batch norm, so its statistics cannot be shared "
            "between processes without losing what it does besides. Give --no-sync-norm, or "
            "choose another backbone."
        )
    kind = nn.SyncBatchNorm if device_type == "cuda" else _CPU_KINDS[type(norm)]
    return remade(norm, kind)
