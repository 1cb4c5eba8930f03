"""Shortcuts with a stride are products of the cells they read, and say what cuDNN says."""

from __future__ import annotations

import pytest
import torch
from builders.gpu_marks import DEVICE, NEEDS_GPU
from torch import Tensor, nn

from clove_ssl.backbones.pieces import _project

pytestmark = NEEDS_GPU


def made(layer: nn.Conv2d, maps: Tensor, *, by_product: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and the gradients of maps and weight."""
    maps = maps.detach().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        result = _project(layer, maps) if by_product else layer(maps)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert (type(result.grad_fn).__name__ == "PermuteBackward0") == by_product
    result.backward(torch.linspace(-1, 1, result.numel(), device=DEVICE).reshape(result.shape))
    assert maps.grad is not None
    assert layer.weight.grad is not None
    return result.detach(), maps.grad, layer.weight.grad.clone()


@pytest.mark.parametrize("side", [40, 7])
def test_the_shortcut_of_a_stride_is_its_convolution(side: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(64, 128, 1, stride=2, bias=False).to(
        DEVICE, memory_format=torch.channels_last
    )
    maps = torch.randn(32, 64, side, side, device=DEVICE).bfloat16()
    maps = maps.to(memory_format=torch.channels_last)
    for mine, theirs in zip(
        made(layer, maps, by_product=True), made(layer, maps, by_product=False), strict=True
    ):
        error = (mine.double() - theirs.double()).norm() / theirs.double().norm()
        assert error < 5e-3
