"""The stem's convolution by depth: the same sums as torch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clove_ssl.backbones.stem import convolve_by_depth, is_stem_convolution


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 99))
def test_it_equals_the_strided_convolution(half_height: int, half_width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, 2 * half_height, 2 * half_width)
    images = torch.randn(shape, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 3, 7, 7, generator=generator, dtype=torch.float64)
    expected = F.conv2d(images, weight, stride=2, padding=3)
    torch.testing.assert_close(convolve_by_depth(images, weight), expected)


def test_its_gradient_is_exact() -> None:
    images = torch.randn(1, 3, 8, 6, dtype=torch.float64)
    weight = torch.randn(2, 3, 7, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: convolve_by_depth(images, w), (weight,))


@pytest.mark.parametrize(
    ("convolution", "expected"),
    [
        (nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False), True),
        (nn.Conv2d(3, 64, 7, stride=2, padding=3), False),
        (nn.Conv2d(4, 64, 7, stride=2, padding=3, bias=False), False),
        (nn.Conv2d(3, 64, 7, stride=2, padding=2, bias=False), False),
        (nn.Conv2d(3, 64, 3, stride=2, padding=3, bias=False), False),
        (nn.ReLU(), False),
    ],
)
def test_only_the_stem_of_a_resnet_is_taken_for_one(convolution, expected) -> None:
    assert is_stem_convolution(convolution) is expected
