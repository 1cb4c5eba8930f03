"""The kernel that turns maps round in memory against torch's copies: the same bits.

With ``TRITON_INTERPRET=1`` in the environment the small cases also run on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.layers import layouts
from clove_ssl.layers.layouts import _MeanOfCells, _Vectors, every_nth, vectors_of

pytest.importorskip("triton")

pytestmark = NEEDS_KERNELS


def channels_last(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(0)
    maps = torch.randn(shape, generator=generator, device=DEVICE, dtype=dtype)
    return maps.to(memory_format=torch.channels_last).requires_grad_()


def compare(maps: Tensor, found: Tensor, expected: Tensor) -> None:
    """The bits of torch, and a gradient in the layout of the maps."""
    assert torch.equal(found, expected)
    pull = torch.randn_like(found)
    (mine,) = torch.autograd.grad(found, maps, pull)
    (theirs,) = torch.autograd.grad(expected, maps, pull)
    assert torch.equal(mine, theirs)
    assert mine.stride() == maps.stride()


@pytest.fixture
def kernels_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_has_kernels", lambda maps, layout: True)


SHAPES = [(3, 5, 7, 7), (2, 70, 3, 2), (1, 2, 9, 8), (0, 4, 2, 2)]


@pytest.mark.usefixtures("kernels_anywhere")
@pytest.mark.parametrize("shape", SHAPES)
def test_tiny_maps_as_vectors(shape: tuple[int, ...]) -> None:
    maps = channels_last(*shape)
    compare(maps, _Vectors.apply(maps), maps.flatten(1))


@pytest.mark.usefixtures("kernels_anywhere")
@pytest.mark.parametrize("steps", [(2, 2), (1, 3), (3, 2)])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_nth_cell_of_tiny_maps(shape: tuple[int, ...], steps: tuple[int, int]) -> None:
    maps = channels_last(*shape)
    compare(maps, every_nth(maps, steps), maps[:, :, :: steps[0], :: steps[1]])


@pytest.mark.usefixtures("kernels_anywhere")
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_the_mean_of_tiny_maps(shape: tuple[int, ...]) -> None:
    maps = channels_last(*shape)
    compare(maps, _MeanOfCells.apply(maps), maps.mean(dim=(2, 3)))


@full_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_regions_of_a_batch(dtype: torch.dtype) -> None:
    maps = channels_last(8192, 256, 7, 7, dtype=dtype)
    compare(maps, vectors_of(maps), maps.flatten(1))
    compare(maps, every_nth(maps, (2, 2)), maps[:, :, ::2, ::2])
    compare(maps, _MeanOfCells.apply(maps), maps.mean(dim=(2, 3)))


@full_size
def test_more_values_than_31_bits_count() -> None:
    maps = channels_last(60_000, 1024, 6, 6, dtype=torch.bfloat16)
    compare(maps, vectors_of(maps), maps.flatten(1))
    compare(maps, every_nth(maps, (2, 2)), maps[:, :, ::2, ::2])


@full_size
def test_a_gpu_turns_maps_by_the_kernel() -> None:
    maps = channels_last(40, 8, 7, 7)
    assert "_Vectors" in type(vectors_of(maps).grad_fn).__name__
    assert "_Vectors" not in type(vectors_of(maps.contiguous()).grad_fn).__name__
