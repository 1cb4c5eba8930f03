"""Gradients lie in memory as the maps do, and are those of torch's own operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clove_ssl.layers.layouts import _MeanOfCells, every_nth, mean_of_cells

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
