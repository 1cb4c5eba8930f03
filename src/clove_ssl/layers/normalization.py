"""Unit vectors, batch norm by some rows, and one whose statistics span all processes.

On CUDA torch's own ``nn.SyncBatchNorm`` does the work; it does not run on a
CPU, where the classes here take its place, so that a run on two CPU processes
normalises exactly like one on a single process with the whole batch.

Dimensions: B images, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clove_ssl.errors import UserError
from clove_ssl.layers.collectives import processes, sum_with_gradient
from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.layers.fused_norm.activation import has_triton

Norm = TypeVar("Norm", bound=_BatchNorm)


def unit_vectors(tensor: Tensor, dim: int = -1) -> Tensor:
    """Scale to length 1 along ``dim``, in fp32 or better.

    In fp16 the guard of 1e-12 is zero, and a zero vector becomes NaN.
    """
    rows = tensor.movedim(dim, -1)
    if _has_kernel_for(rows):
        return _unit_rows(rows, 1.0, torch.float32).movedim(-1, dim)
    return F.normalize(at_least_fp32(tensor), dim=dim)


def scaled_units(rows: Tensor, divisor: float) -> Tensor:
    """Vectors (..., C) of length 1 / ``divisor``, computed in fp32 or better, in their type."""
    if _has_kernel_for(rows):
        return _unit_rows(rows, divisor, rows.dtype)
    return (unit_vectors(rows) / divisor).to(rows.dtype)


def _has_kernel_for(rows: Tensor) -> bool:
    """Whether a kernel of ours can do it in one go."""
    if torch.compiler.is_compiling() or not (rows.is_cuda and rows.numel() and has_triton()):
        return False
    from clove_ssl.layers.unit_rows import fits

    return rows.dtype in (torch.bfloat16, torch.float16, torch.float32) and fits(rows)


def _unit_rows(rows: Tensor, divisor: float, dtype: torch.dtype) -> Tensor:
    from clove_ssl.layers.unit_rows import UnitRows

    units: Tensor = UnitRows.apply(rows, divisor, dtype)
    return units


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


class _Synchronized(_BatchNorm):
    """Batch norm with statistics over the batches of all processes, for CPU and gloo.

    Batches may differ in size. As with ``nn.SyncBatchNorm``, gradients are those
    of the sum of the processes' losses: the input's is complete, the affine
    parameters' is this process's share.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, ...) -> same shape."""
        if not self.training or processes() == 1:
            return super().forward(features)
        self._check_input_dim(features)  # type: ignore[no-untyped-call]
        normalized = self._normalize(at_least_fp32(features)).movedim(-1, 1)  # (B, C, ...)
        return normalized.to(features.dtype)

    def _normalize(self, features: Tensor) -> Tensor:
        values = features.movedim(1, -1)  # (B, ..., C)
        rows = values.flatten(0, -2)  # (R, C)
        found = _statistics(rows, rows.new_ones(len(rows), 1), sum_with_gradient)
        if found.size <= 1:
            raise ValueError(
                f"batch norm needs more than 1 value per channel, got {found.size:.0f}"
            )
        _track_if_any(self, found)
        return found.applied(self, values)


def normalize_counted(norm: _BatchNorm, rows: Tensor, counted: Tensor) -> Tensor:
    """Batch norm of (R, C) rows by the statistics of those that are ``counted``, (R,) bool.

    They span all processes if those of ``norm`` do. Others are normalised like them. A
    single row has no variance; where none counts, running statistics stay as they are.
    """
    if not norm.training:
        normalized: Tensor = norm(rows)
        return normalized
    shared = isinstance(norm, nn.SyncBatchNorm | _Synchronized) and processes() > 1
    wide = at_least_fp32(rows)
    weights = counted.to(wide.dtype)[:, None]
    found = _statistics(wide, weights, sum_with_gradient if shared else lambda values: values)
    _track_if_any(norm, found)
    return found.applied(norm, wide).to(rows.dtype)


class _Statistics(NamedTuple):
    """Of a batch."""

    size: Tensor  # scalar
    mean: Tensor  # (C,)
    variance: Tensor  # (C,)

    @property
    def unbiased(self) -> Tensor:
        """The variance as one estimates it from a sample, (C,)."""
        return self.variance * self.size / (self.size - 1).clamp(min=1)

    def applied(self, norm: _BatchNorm, values: Tensor) -> Tensor:
        """Values (..., C), normalised, with weight and bias of ``norm``."""
        normalized = (values - self.mean) * (self.variance + norm.eps).rsqrt()
        return normalized * norm.weight + norm.bias if norm.affine else normalized


def _statistics(
    rows: Tensor,  # (R, C)
    weights: Tensor,  # (R, 1) 1 for rows that count, 0 for others
    total: Callable[[Tensor], Tensor],  # over those who share their statistics
) -> _Statistics:
    sums = total(torch.cat([(rows * weights).sum(0), weights.sum(0)]))  # (C + 1,)
    size = sums[-1].detach()
    some = size.clamp(min=1)
    mean = sums[:-1] / some
    # A second pass: a variance from sums of squares loses digits where the mean is large.
    variance = total(((rows - mean).square() * weights).sum(0)) / some
    return _Statistics(size, mean, variance)


@torch.no_grad()
def _track_if_any(norm: _BatchNorm, found: _Statistics) -> None:
    if norm.running_mean is None or norm.running_var is None:
        return
    mean = torch.where(found.size > 0, found.mean, norm.running_mean)
    track(norm, mean, torch.where(found.size > 0, found.unbiased, norm.running_var))


class SynchronizedBatchNorm1d(_Synchronized, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` over the batches of all processes."""


class SynchronizedBatchNorm2d(_Synchronized, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` over the batches of all processes."""


_CPU_KINDS: dict[type[nn.Module], type[_BatchNorm]] = {
    nn.BatchNorm1d: SynchronizedBatchNorm1d,
    nn.BatchNorm2d: SynchronizedBatchNorm2d,
}


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
