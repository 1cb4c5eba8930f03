"""Attention by the flash kernel repeats itself bit for bit, and is that of plain products."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_GPU
from torch import Tensor

from clove_ssl.layers import attention
from clove_ssl.layers.attention import attend

pytestmark = NEEDS_GPU


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def stacked_heads(cells: int, dtype: torch.dtype) -> Tensor:
    """Queries, keys and values of one layer, (B, L, 3, H, C), with gradients."""
    torch.manual_seed(0)
    made = torch.randn(64, cells, 3, 8, 32, device=DEVICE).to(dtype)
    return made.requires_grad_()


def mixed_and_gradient(stacked: Tensor) -> tuple[Tensor, Tensor]:
    mixed = attend(*(each.transpose(1, 2) for each in stacked.unbind(2)))
    pull = torch.linspace(-1, 1, mixed.numel(), device=DEVICE).reshape(mixed.shape)
    (gradient,) = torch.autograd.grad(mixed, stacked, pull.to(mixed.dtype), retain_graph=True)
    (again,) = torch.autograd.grad(mixed, stacked, pull.to(mixed.dtype))
    assert torch.equal(gradient, again)
    return mixed.detach(), gradient


@pytest.mark.parametrize("cells", [9, 25, 36, 49, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_repeats_itself_and_equals_plain_products(cells: int, dtype: torch.dtype) -> None:
    stacked = stacked_heads(cells, dtype)
    mixed, gradient = mixed_and_gradient(stacked)
    for _ in range(3):
        again = mixed_and_gradient(stacked)
        assert torch.equal(mixed, again[0])
        assert torch.equal(gradient, again[1])
    exact = stacked.detach().double().requires_grad_()
    queries, keys, values = (each.transpose(1, 2) for each in exact.unbind(2))
    wanted = (queries @ keys.mT).softmax(-1) @ values
    pull = torch.linspace(-1, 1, wanted.numel(), device=DEVICE).reshape(wanted.shape)
    wanted.backward(pull.to(dtype).double())
    assert exact.grad is not None
    torch.testing.assert_close(mixed.double(), wanted.detach(), rtol=0.02, atol=0.02)
    off = (gradient.double() - exact.grad).norm() / exact.grad.norm()
    assert off < 0.02


def test_full_precision_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention._RepeatableFlash, "apply", None)
    heads = [torch.randn(2, 2, 5, 8, device=DEVICE) for _ in range(3)]
    wanted = F.scaled_dot_product_attention(*heads, scale=1.0)
    torch.testing.assert_close(attend(*heads), wanted)


def test_what_a_run_asks_for_is_what_it_was() -> None:
    mixed_and_gradient(stacked_heads(9, torch.bfloat16))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
