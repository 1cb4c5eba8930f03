"""Attention by the kernels for few cells is that of plain products, forward and backward."""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

pytestmark = NEEDS_KERNELS


def stacked_heads(images: int, cells: int, heads: int, channels: int) -> Tensor:
    """Queries, keys and values of one layer, (B, L, 3, H, C)."""
    generator = torch.Generator().manual_seed(cells)
    return torch.randn(images, cells, 3, heads, channels, generator=generator).to(DEVICE) / 2


def heads_of(stacked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys, values = (each.transpose(1, 2) for each in stacked.unbind(2))
    return queries, keys, values


def pull_at(mixed: Tensor) -> Tensor:
    """A gradient that differs from number to number, laid out as one that comes from a layer."""
    images, heads, cells, channels = mixed.shape
    pull = torch.linspace(-1, 1, mixed.numel(), device=DEVICE).sin()
    return pull.reshape(images, cells, heads, channels).transpose(1, 2).to(mixed.dtype)


def by_kernel(heads: tuple[Tensor, ...], pull: Tensor | None = None) -> list[Tensor]:
    """What is mixed, and the gradients of queries, keys and values."""
    from clove_ssl.layers.attention_kernel import FewCells, fits

    assert fits(*heads)
    heads = tuple(each.detach().requires_grad_() for each in heads)
    mixed = FewCells.apply(*heads)
    pull = pull_at(mixed) if pull is None else pull
    return [mixed.detach(), *torch.autograd.grad(mixed, heads, pull)]


def by_products(heads: tuple[Tensor, ...], pull: Tensor | None = None) -> list[Tensor]:
    """The same in float64."""
    like = heads[0]
    queries, keys, values = (each.detach().double().requires_grad_() for each in heads)
    mixed = (queries @ keys.mT).softmax(-1) @ values
    pull = pull_at(mixed.to(like.dtype)) if pull is None else pull
    return [mixed.detach(), *torch.autograd.grad(mixed, (queries, keys, values), pull.double())]


def assert_like_products(heads: tuple[Tensor, ...], tolerance: float = 1e-5) -> None:
    for found, wanted in zip(by_kernel(heads), by_products(heads), strict=True):
        assert found.dtype == heads[0].dtype
        assert found.transpose(1, 2).is_contiguous()  # joining all heads takes no copy
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cells", [1, 9, 16, 25, 36, 100])
def test_tiny_batches_of_one_of_three_layers(cells: int) -> None:
    assert_like_products(heads_of(stacked_heads(2, cells, 3, 16)))


@pytest.mark.parametrize("channels", [32, 64])
def test_tiny_batches_with_more_channels(channels: int) -> None:
    queries, keys, values = heads_of(stacked_heads(1, 12, 2, channels))
    # As CLoVE has them: two that were written anew, one of three layers.
    assert_like_products((queries.contiguous(), keys.clone(), values))


def test_tiny_batches_with_another_number_of_keys() -> None:
    queries, _, _ = heads_of(stacked_heads(2, 40, 2, 16))
    _, keys, values = heads_of(stacked_heads(2, 18, 2, 16))
    assert_like_products((queries, keys, values))
    queries, _, _ = heads_of(stacked_heads(2, 5, 2, 16))
    _, keys, values = heads_of(stacked_heads(2, 70, 2, 16))
    assert_like_products((queries, keys, values))


@pytest.mark.parametrize("rows", [16, 32])
def test_tiny_batches_with_some_queries_at_a_time(rows: int) -> None:
    from clove_ssl.layers.attention_kernel import Launch, backward, forward

    heads = heads_of(stacked_heads(1, 36, 2, 16))
    mixed, *gradients = by_products(heads)
    launch = Launch(rows=rows, warps=2)
    found, levels = forward(*heads, launch=launch)
    torch.testing.assert_close(found.double(), mixed, rtol=1e-5, atol=1e-5)
    again = backward(pull_at(found), found, levels, *heads, launch=launch)
    for one, wanted in zip(again, gradients, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-5, atol=1e-5)


def test_tiny_batches_in_half_precision() -> None:
    assert_like_products(heads_of(stacked_heads(1, 9, 2, 16).half()), tolerance=5e-3)


def test_tiny_gradients_of_a_sum() -> None:
    """Whose gradient is a single number, read over and over."""
    heads = heads_of(stacked_heads(1, 9, 2, 16))
    pull = torch.ones((), device=DEVICE).expand(heads[0].shape)
    for found, wanted in zip(by_kernel(heads, pull), by_products(heads, pull), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_tiny_batches_with_what_is_no_number_give_no_number() -> None:
    stacked = stacked_heads(2, 9, 2, 16)
    stacked[1, 4] = torch.nan
    found = by_kernel(heads_of(stacked))
    for each in found:
        assert each[0].isfinite().all()
        assert each[1].isnan().all()


def test_tiny_heads_that_do_not_fit_are_refused() -> None:
    from clove_ssl.layers.attention_kernel import fits

    for cells, channels in [(129, 16), (9, 24), (9, 8), (100, 128)]:
        assert not fits(*heads_of(stacked_heads(1, cells, 1, channels)))
    queries, keys, values = heads_of(stacked_heads(1, 16, 1, 16))
    assert not fits(queries, keys, values.mT)  # channels lie apart
    assert not fits(queries, keys, values[:, :, :9])
    assert not fits(queries[:0], keys[:0], values[:0])


@full_size
@pytest.mark.parametrize("cells", [1, 9, 25, 36, 49, 100, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batches_of_runs_repeat_themselves(cells: int, dtype: torch.dtype) -> None:
    heads = heads_of(stacked_heads(256, cells, 8, 32).to(dtype))
    found = by_kernel(heads)
    for one, wanted in zip(found, by_products(heads), strict=True):
        off = (one.double() - wanted).norm() / wanted.norm().clamp(min=1)
        assert off < 0.01
    for _ in range(3):
        for one, again in zip(found, by_kernel(heads), strict=True):
            assert torch.equal(one, again)


@full_size
@pytest.mark.parametrize(("cells", "channels"), [(9, 128), (49, 128), (100, 64), (100, 16)])
def test_heads_of_other_sizes(cells: int, channels: int) -> None:
    heads = heads_of(stacked_heads(64, cells, 4, channels).bfloat16())
    for one, wanted in zip(by_kernel(heads), by_products(heads), strict=True):
        assert (one.double() - wanted).norm() < 0.02 * wanted.norm()
