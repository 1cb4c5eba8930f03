"""Attention repeats itself bit for bit, and is that of plain products, whatever kernel it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_GPU
from torch import Tensor

from clove_ssl.layers import attention
from clove_ssl.layers.attention import attend

pytestmark = NEEDS_GPU

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
BY_FLASH: Attention = attention._RepeatableFlash.apply


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


def heads_of(stacked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = (each.transpose(1, 2) for each in stacked.unbind(2))
    return queries, keys, values


def mixed_and_gradient(stacked: Tensor, mix: Attention = attend) -> tuple[Tensor, Tensor]:
    mixed = mix(*heads_of(stacked))
    pull = torch.linspace(-1, 1, mixed.numel(), device=DEVICE).reshape(mixed.shape)
    (gradient,) = torch.autograd.grad(mixed, stacked, pull.to(mixed.dtype), retain_graph=True)
    (again,) = torch.autograd.grad(mixed, stacked, pull.to(mixed.dtype))
    assert torch.equal(gradient, again)
    return mixed.detach(), gradient


def assert_repeats_itself_and_equals_plain_products(stacked: Tensor, mix: Attention) -> None:
    mixed, gradient = mixed_and_gradient(stacked, mix)
    for _ in range(3):
        again = mixed_and_gradient(stacked, mix)
        assert torch.equal(mixed, again[0])
        assert torch.equal(gradient, again[1])
    exact = stacked.detach().double().requires_grad_()
    queries, keys, values = heads_of(exact)
    wanted = (queries @ keys.mT).softmax(-1) @ values
    pull = torch.linspace(-1, 1, wanted.numel(), device=DEVICE).reshape(wanted.shape)
    wanted.backward(pull.to(stacked.dtype).double())
    assert exact.grad is not None
    torch.testing.assert_close(mixed.double(), wanted.detach(), rtol=0.02, atol=0.02)
    off = (gradient.double() - exact.grad).norm() / exact.grad.norm()
    assert off < 0.02


@pytest.mark.parametrize("cells", [9, 25, 36, 49, 100, 144, 196])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_repeats_itself_and_equals_plain_products(cells: int, dtype: torch.dtype) -> None:
    assert_repeats_itself_and_equals_plain_products(stacked_heads(cells, dtype), attend)


@pytest.mark.parametrize("cells", [9, 49, 100])
def test_the_flash_kernel_does_so_for_few_cells_too(cells: int) -> None:
    """As without Triton, or for heads that our kernels have no room for."""
    assert_repeats_itself_and_equals_plain_products(stacked_heads(cells, torch.bfloat16), BY_FLASH)


@pytest.mark.parametrize(("cells", "way"), [(128, "FewCells"), (129, "flash")])
def test_few_cells_have_kernels_of_our_own(
    cells: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clove_ssl.layers.attention_kernel import FewCells

    taken = []
    monkeypatch.setattr(FewCells, "apply", lambda *_: taken.append("FewCells"))
    monkeypatch.setattr(attention._RepeatableFlash, "apply", lambda *_: taken.append("flash"))
    attend(*heads_of(stacked_heads(cells, torch.bfloat16)))
    assert taken == [way]


def test_few_cells_repeat_themselves_where_nobody_asked_for_it() -> None:
    torch.use_deterministic_algorithms(False)
    stacked = stacked_heads(36, torch.bfloat16)
    once, twice = mixed_and_gradient(stacked), mixed_and_gradient(stacked)
    assert all(torch.equal(*pair) for pair in zip(once, twice, strict=True))


def test_full_precision_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention._RepeatableFlash, "apply", None)
    heads = [torch.randn(2, 2, 5, 8, device=DEVICE) for _ in range(3)]
    wanted = F.scaled_dot_product_attention(*heads, scale=1.0)
    torch.testing.assert_close(attend(*heads), wanted)


def test_what_a_run_asks_for_is_what_it_was() -> None:
    mixed_and_gradient(stacked_heads(144, torch.bfloat16))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
