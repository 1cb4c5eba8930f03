"""The kernel that turns maps round in memory against torch's copies: the same bits.

With ``TRITON_INTERPRET=1`` in the environment the small cases also run on the CPU.
"""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size
from torch import Tensor

from clove_ssl.layers import layouts
from clove_ssl.layers.layouts import vectors_of

pytest.importorskip("triton")

pytestmark = NEEDS_KERNELS


def channels_last(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    maps = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    return maps.to(memory_format=torch.channels_last).requires_grad_()


def compare(maps: Tensor) -> None:
    """Vectors and gradients with the bits of ``flatten``, and the gradient in the maps' layout."""
    found, expected = vectors_of(maps), maps.flatten(1)
    assert "_Vectors" in type(found.grad_fn).__name__
    assert found.is_contiguous()
    assert torch.equal(found, expected)
    pull = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found)
    (mine,) = torch.autograd.grad(found, maps, pull)
    (theirs,) = torch.autograd.grad(expected, maps, pull)
    assert torch.equal(mine, theirs)
    assert mine.stride() == maps.stride()


@pytest.mark.parametrize("shape", [(3, 5, 7, 7), (2, 70, 3, 2), (1, 2, 9, 8), (0, 4, 2, 2)])
def test_tiny_maps(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_is_turned_by_kernel", lambda maps: True)
    compare(channels_last(*shape))


@full_size
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_regions_of_a_batch(dtype: torch.dtype) -> None:
    compare(channels_last(8192, 256, 7, 7, dtype=dtype))


@full_size
def test_more_values_than_31_bits_count() -> None:
    compare(channels_last(60_000, 1024, 6, 6, dtype=torch.bfloat16))
