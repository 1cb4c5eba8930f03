"""Rows that a kernel scales to length 1 are those of torch, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

pytestmark = NEEDS_KERNELS


def assert_scaled_as_by_torch(rows: Tensor, divisor: float) -> None:
    from clove_ssl.layers.unit_rows import UnitRows, fits

    assert fits(rows)
    exact = rows.detach().double().requires_grad_()
    wanted = F.normalize(exact, dim=-1) / divisor
    pull = torch.linspace(-1, 1, wanted.numel(), device=DEVICE).reshape(wanted.shape)
    wanted.backward(pull.double())
    rows = rows.detach().requires_grad_()
    found = UnitRows.apply(rows, divisor, torch.float32)
    found.backward(pull)
    assert exact.grad is not None
    assert rows.grad is not None
    assert torch.allclose(found.double(), wanted, rtol=1e-5, atol=1e-6)
    coarse = 1e-6 if rows.dtype == torch.float32 else 0.01
    assert torch.allclose(rows.grad.double(), exact.grad, rtol=coarse, atol=coarse)


def test_tiny_rows_without_gaps() -> None:
    assert_scaled_as_by_torch(torch.randn(5, 3, 20, device=DEVICE), 1.0)


def test_tiny_rows_of_one_of_three_layers() -> None:
    stacked = torch.randn(2, 5, 3, 4, 16, device=DEVICE)  # (B, L, 3, H, C)
    assert_scaled_as_by_torch(stacked.unbind(2)[1], 0.2)


def test_tiny_rows_of_nothing_stay_nothing() -> None:
    from clove_ssl.layers.unit_rows import UnitRows

    rows = torch.zeros(3, 8, device=DEVICE, requires_grad=True)
    out = UnitRows.apply(rows, 1.0, torch.float32)
    out.sum().backward()
    assert rows.grad is not None
    assert torch.equal(out, torch.zeros_like(out))
    assert rows.grad.isfinite().all()


@full_size
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_runs(dtype: torch.dtype) -> None:
    from clove_ssl.layers.normalization import unit_vectors

    maps = torch.randn(64, 256, 10, 10, device=DEVICE).to(dtype)
    maps = maps.to(memory_format=torch.channels_last)
    assert_scaled_as_by_torch(maps.permute(0, 2, 3, 1), 1.0)
    wanted = F.normalize(maps.float(), dim=1)
    found = unit_vectors(maps, dim=1)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
