"""Gradients lie in memory as the maps do, and are those of torch's own operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clove_ssl.layers.layouts import (
    _MeanOfCells,
    every_nth,
    first_maps,
    mean_of_cells,
    upper_left,
    vectors_of,
)

LAYOUTS = [torch.channels_last, torch.contiguous_format]


def maps_in(layout: torch.memory_format) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 3, 7, 4, generator=generator, dtype=torch.float64)
    return maps.to(memory_format=layout).requires_grad_()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_chosen_rows_and_columns_are_slices_whose_gradient_lies_like_the_maps(
    layout: torch.memory_format,
) -> None:
    maps = maps_in(layout)
    chosen = every_nth(maps, (3, 2))
    assert torch.equal(chosen, maps[:, :, ::3, ::2])
    pull = torch.rand_like(chosen)
    (wanted,) = torch.autograd.grad(maps[:, :, ::3, ::2], maps, pull)
    (found,) = torch.autograd.grad(chosen, maps, pull)
    assert torch.equal(found, wanted)
    assert found.is_contiguous(memory_format=layout)
    assert torch.autograd.gradcheck(lambda each: every_nth(each, (2, 3)), (maps,))


@pytest.mark.parametrize("pulled", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_maps_are_slices_whose_gradient_lies_like_the_maps(
    layout: torch.memory_format, pulled: torch.memory_format
) -> None:
    maps = maps_in(layout)
    pairs = [
        (first_maps(maps, 1), maps[:1]),
        (upper_left(maps, 5, 3), maps[:, :, :5, :3]),
    ]
    for part, expected in pairs:
        assert torch.equal(part, expected)
        assert part.is_contiguous(memory_format=layout)
        pull = torch.rand_like(part).contiguous(memory_format=pulled)
        (wanted,) = torch.autograd.grad(expected, maps, pull)
        (found,) = torch.autograd.grad(part, maps, pull)
        assert torch.equal(found, wanted)
        assert found.is_contiguous(memory_format=layout)


def test_the_first_maps_may_be_rectified_in_place() -> None:
    maps = maps_in(torch.channels_last)
    rectified = torch.relu_(first_maps(maps * 2 - 1, 1))
    (found,) = torch.autograd.grad(rectified.sum(), maps)
    assert torch.equal(found[:1], 2.0 * (maps[:1] > 0.5))
    assert not found[1:].any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_have_the_channels_first_whatever_the_maps_have(
    layout: torch.memory_format,
) -> None:
    maps = maps_in(layout)
    assert torch.equal(vectors_of(maps), maps.detach().contiguous().view(2, -1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_mean_of_cells_has_the_bits_of_torch_and_a_gradient_that_lies_like_the_maps(
    layout: torch.memory_format, dtype: torch.dtype
) -> None:
    maps = maps_in(layout).detach().to(dtype).requires_grad_()
    wanted, found = maps.mean(dim=(2, 3)), _MeanOfCells.apply(maps)
    assert torch.equal(found, wanted)
    assert torch.equal(mean_of_cells(maps), wanted)
    pull = torch.linspace(-1, 1, found.numel()).reshape(found.shape).to(dtype)
    (expected,) = torch.autograd.grad(wanted, maps, pull)
    (gradient,) = torch.autograd.grad(found, maps, pull)
    assert torch.equal(gradient, expected)
    assert gradient.is_contiguous(memory_format=layout)
