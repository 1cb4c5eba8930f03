"""The stem by kernels: pixels lie where torch puts them, and are convolved as torch does it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, ON_GPU, full_size
from torch import Tensor

from clove_ssl.backbones.stem import CHANNELS, HOPPER, convolve_by_depth
from clove_ssl.backbones.stem import deep_pixels as deep_pixels_of_torch

pytestmark = NEEDS_KERNELS

takes_convolution = pytest.mark.skipif(
    ON_GPU and torch.cuda.get_device_capability()[0] != HOPPER, reason="needs a Hopper GPU"
)
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def assert_moved_as_by_torch(shape: tuple[int, int, int, int]) -> None:
    from clove_ssl.backbones.stem_kernel import deep_pixels

    images = torch.randn(shape).to(DEVICE).to(memory_format=torch.channels_last)
    moved = deep_pixels(images, channels=CHANNELS, dtype=torch.float32)
    assert torch.equal(moved, deep_pixels_of_torch(images))
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_tiny_images() -> None:
    assert_moved_as_by_torch((2, 3, 6, 8))


@full_size
@pytest.mark.parametrize("shape", [(64, 3, 160, 160), (3, 3, 96, 224)], ids=str)
def test_images_of_runs(shape: tuple[int, int, int, int]) -> None:
    assert_moved_as_by_torch(shape)


class Sizes(NamedTuple):
    """Of what comes out of a convolution."""

    images: int
    depth: int
    height: int
    width: int

    @property
    def of_pixels(self) -> tuple[int, int, int, int]:
        return self.images, CHANNELS, self.height + 3, self.width + 3


# Lines and columns that fill no tile, more of them than one tile has, two blocks of channels.
TINY = [Sizes(2, 64, 5, 7), Sizes(3, 64, 2, 25), Sizes(1, 128, 9, 6), Sizes(1, 64, 1, 1)]
HALF = torch.float16  # Triton's interpreter cannot multiply bfloat16


def whole_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Their products and sums are exact in any order, so results can be compared bit for bit."""
    drawn = torch.randint(-2, 3, shape, dtype=torch.int8, device=DEVICE)
    return drawn.to(dtype).to(memory_format=torch.channels_last)


def tap_gradients_of_torch(pixels: Tensor, outer: Tensor) -> Tensor:
    """In doubles."""
    shape = (outer.shape[1], CHANNELS, 4, 4)
    return torch.nn.grad.conv2d_weight(pixels.double(), shape, outer.double())


@takes_convolution
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("sizes", TINY, ids=str)
def test_tiny_convolutions(sizes: Sizes, dtype: torch.dtype) -> None:
    from clove_ssl.backbones.stem_convolution import convolve

    pixels = whole_numbers(sizes.of_pixels, HALF)
    taps = whole_numbers((sizes.depth, CHANNELS, 4, 4), dtype)
    expected = F.conv2d(pixels.double(), taps.double()).to(HALF)
    for segment in (4, 40):
        out = convolve(pixels, taps, segment=segment)
        assert torch.equal(out, expected)
        assert out.is_contiguous(memory_format=torch.channels_last)


@takes_convolution
@pytest.mark.parametrize("sizes", TINY, ids=str)
def test_tiny_gradients_of_taps(sizes: Sizes) -> None:
    from clove_ssl.backbones.stem_convolution import tap_gradients

    pixels, outer = whole_numbers(sizes.of_pixels, HALF), whole_numbers(sizes, HALF)
    expected = tap_gradients_of_torch(pixels, outer).float()
    for parts in (3, 264):
        assert torch.equal(tap_gradients(pixels, outer, parts=parts), expected)


@takes_convolution
def test_tiny_gradients_come_in_the_dtype_of_the_taps() -> None:
    """Also from a gradient that is one number, expanded, as that of a sum is."""
    from clove_ssl.backbones.stem_convolution import StemConvolution

    sizes = Sizes(2, 64, 3, 5)
    pixels = whole_numbers(sizes.of_pixels, HALF)
    taps = whole_numbers((sizes.depth, CHANNELS, 4, 4), torch.float32).requires_grad_()
    StemConvolution.apply(pixels, taps).sum().backward()
    expected = tap_gradients_of_torch(pixels, pixels.new_ones(sizes))
    assert taps.grad is not None
    assert taps.grad.dtype == torch.float32
    assert torch.equal(taps.grad, expected.float())


def step_of_stem(images: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What comes out, and the gradients of weights, under autocast."""
    weight = weight.clone().requires_grad_()
    with torch.autocast("cuda", dtype=dtype):
        out = convolve_by_depth(images, weight)
    assert type(out.grad_fn).__name__ == "StemConvolutionBackward"  # and not torch's
    generator = torch.Generator(DEVICE).manual_seed(1)
    outer = torch.randn(out.shape, generator=generator, device=DEVICE)
    out.backward(outer.to(dtype))
    assert weight.grad is not None
    return out.detach(), weight.grad


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


@full_size
@takes_convolution
@HALVES
@pytest.mark.parametrize("shape", [(64, 3, 160, 160), (5, 3, 96, 224), (33, 3, 98, 90)], ids=str)
def test_stems_of_runs(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    images = torch.randn(shape).to(DEVICE).to(memory_format=torch.channels_last)
    weight = 0.1 * torch.randn(64, 3, 7, 7, device=DEVICE)
    out, gradient = step_of_stem(images, weight, dtype)
    exact = weight.double().requires_grad_()
    expected = F.conv2d(images.double(), exact, stride=2, padding=3)
    generator = torch.Generator(DEVICE).manual_seed(1)
    outer = torch.randn(out.shape, generator=generator, device=DEVICE)
    expected.backward(outer.to(dtype).double())
    assert exact.grad is not None
    assert out.dtype == dtype
    assert distance(out, expected.detach()) < 1e-2
    assert distance(gradient, exact.grad) < 1e-2
    again, gradient_again = step_of_stem(images, weight, dtype)
    assert torch.equal(again, out)
    assert torch.equal(gradient_again, gradient)


@full_size
@takes_convolution
def test_places_beyond_32_bits() -> None:
    """Only the last image has gradients, so those of the taps are its own."""
    from clove_ssl.backbones.stem_convolution import convolve, tap_gradients

    sizes = Sizes(4096, 64, 112, 112)
    pixels = whole_numbers(sizes.of_pixels, torch.bfloat16)
    taps = whole_numbers((sizes.depth, CHANNELS, 4, 4), torch.float32)
    out = convolve(pixels, taps)
    last = F.conv2d(pixels[-1:].double(), taps.double()).to(torch.bfloat16)
    assert torch.equal(out[-1:], last)
    outer = out.zero_()
    outer[-1:] = whole_numbers((1, *sizes[1:]), torch.bfloat16)
    expected = tap_gradients_of_torch(pixels[-1:], outer[-1:]).float()
    assert torch.equal(tap_gradients(pixels, outer), expected)
