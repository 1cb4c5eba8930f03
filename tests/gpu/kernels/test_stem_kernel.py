"""The stem by kernels: pixels lie where torch puts them, and are convolved as torch does it."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, ON_GPU, full_size
from torch import Tensor, nn

from clove_ssl.backbones import stem as stem_module
from clove_ssl.backbones.pieces import Chain
from clove_ssl.backbones.stem import CHANNELS, HOPPER, convolve_by_depth
from clove_ssl.backbones.stem import deep_pixels as deep_pixels_of_torch
from clove_ssl.layers.fused_norm import activation
from clove_ssl.layers.fused_norm.activation import Sums

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
@pytest.mark.parametrize("takes_sums", [True, False], ids=["sums", "alone"])
def test_tiny_gradients_come_in_the_dtype_of_the_taps(takes_sums: bool) -> None:
    """Also from a gradient that is one number, expanded, as that of a sum is."""
    from clove_ssl.backbones.stem_convolution import StemConvolution

    sizes = Sizes(2, 64, 3, 5)
    pixels = whole_numbers(sizes.of_pixels, HALF)
    taps = whole_numbers((sizes.depth, CHANNELS, 4, 4), torch.float32).requires_grad_()
    out, _ = StemConvolution.apply(pixels, taps, takes_sums)
    out.sum().backward()
    expected = tap_gradients_of_torch(pixels, pixels.new_ones(sizes))
    assert taps.grad is not None
    assert taps.grad.dtype == torch.float32
    assert torch.equal(taps.grad, expected.float())


def distance(one: Tensor, other: Tensor) -> float:
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm() / other.norm())


def means_and_variances(cells: Tensor) -> tuple[Tensor, Tensor]:
    """Of every channel, in doubles."""
    cells = cells.double()
    return cells.mean((0, 2, 3)), cells.var((0, 2, 3), correction=0)


def assert_sums_of(out: Tensor, sums: Sums) -> None:
    """Moments that follow from sums are as near to the truth as floats that add up can be."""
    mean, variance = means_and_variances(out)
    cells = out[:, 0].numel()
    total, squares = sums.table.double().sum(0)
    offset = total / cells
    found = squares / cells - offset**2
    assert ((sums.level + offset - mean).abs() <= 1e-6 * (variance.sqrt() + mean.abs())).all()
    assert ((found - variance).abs() <= 1e-5 * variance + 1e-12).all()


@takes_convolution
@pytest.mark.parametrize("sizes", TINY, ids=str)
def test_tiny_sums_for_a_norm(sizes: Sizes) -> None:
    from clove_ssl.backbones.stem_convolution import convolve, convolve_and_sum

    torch.manual_seed(0)
    pixels = torch.randn(sizes.of_pixels).to(DEVICE, HALF).to(memory_format=torch.channels_last)
    taps = 0.1 * torch.randn(sizes.depth, CHANNELS, 4, 4, device=DEVICE)
    for segment in (3, 40):
        out, sums = convolve_and_sum(pixels, taps, segment=segment)
        assert torch.equal(out, convolve(pixels, taps, segment=segment))
        assert_sums_of(out, sums)
        again = convolve_and_sum(pixels, taps, segment=segment)[1]
        assert torch.equal(again.table, sums.table)
        assert torch.equal(again.level, sums.level)


def far_from_zero(sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Pixels and taps whose values have a mean of a hundred deviations."""
    generator = torch.Generator().manual_seed(0)
    pixels = 1 + 0.01 * torch.randn(sizes.of_pixels, generator=generator)
    # One tap for each channel alone, as a sum of many would deviate less.
    taps = torch.zeros(sizes.depth, CHANNELS, 4, 4)
    taps[:, 3, 1, 2] = torch.linspace(-2, 2, sizes.depth)
    pixels = pixels.to(DEVICE, HALF).to(memory_format=torch.channels_last)
    return pixels, taps.to(DEVICE)


@takes_convolution
def test_tiny_sums_far_from_zero() -> None:
    from clove_ssl.backbones.stem_convolution import convolve_and_sum

    out, sums = convolve_and_sum(*far_from_zero(Sizes(3, 64, 7, 30)), segment=4)
    mean, variance = means_and_variances(out)
    assert (mean.abs() > 80 * variance.sqrt()).all()
    assert_sums_of(out, sums)


@takes_convolution
def test_tiny_sums_show_what_is_not_finite() -> None:
    from clove_ssl.backbones.stem_convolution import convolve_and_sum

    pixels, taps = far_from_zero(Sizes(2, 64, 5, 7))
    pixels[1, 3, 4, 4] = torch.inf
    sums = convolve_and_sum(pixels, taps)[1]
    assert not sums.table[:, 1].sum(0).isfinite().any()


@takes_convolution
def test_tiny_norms_of_a_convolution_take_its_sums() -> None:
    """The same as from sums of their own, running statistics included."""
    from clove_ssl.backbones.stem_convolution import convolve_and_sum
    from clove_ssl.layers.fused_norm.launches import NormPool

    out, sums = convolve_and_sum(*far_from_zero(Sizes(3, 64, 6, 9)))
    norms = [torch.nn.BatchNorm2d(64).to(DEVICE) for _ in range(2)]
    found, expected = (
        NormPool.apply(out, norm.weight, norm.bias, norm, given)
        for norm, given in zip(norms, (sums, None), strict=True)
    )
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def stem_of(dtype: torch.dtype) -> list[nn.Module]:
    """The convolution with all that follows it, as a ResNet has them."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False).to(dtype)
    parts = [convolution, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
    return [part.to(DEVICE) for part in parts]


def assert_stem_as_of_torch(stem: list[nn.Module], images: Tensor) -> None:
    """Within what halves can tell, and the same in a second step."""
    exact = nn.Sequential(*copy.deepcopy(stem)).double()
    again = Chain(copy.deepcopy(stem))
    out, expected = Chain(stem)(images), exact(images.double())
    assert distance(out, expected) < 1e-2
    assert torch.equal(again(images), out)
    for mine, theirs in zip(stem[1].buffers(), exact[1].buffers(), strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-3, atol=1e-4)
    if stem[1].training:
        out.float().square().sum().backward()
        expected.square().sum().backward()
        for mine, theirs in zip(nn.Sequential(*stem).parameters(), exact.parameters(), strict=True):
            # Rounding decides which of nearly equal cells wins a window and gets its gradient.
            assert distance(mine.grad, theirs.grad) < 0.1


@takes_convolution
@pytest.mark.parametrize("training", [True, False], ids=["training", "scoring"])
def test_tiny_stems_hand_their_sums_to_the_norm(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    from clove_ssl.layers.fused_norm import launches

    def refuse(*_: object) -> None:
        pytest.fail("sums were taken a second time")

    monkeypatch.setattr(launches, "_sums", refuse)
    # On a CPU nobody else would choose kernels.
    for name in ("_has_kernel", "_has_convolution"):
        monkeypatch.setattr(stem_module, name, lambda *_: True)
    for module in (stem_module, activation):
        monkeypatch.setattr(module, "is_fused", lambda norm, _: norm.training)
    stem = [part.train(training) for part in stem_of(HALF)]
    if not training:
        stem[1].to(HALF)  # torch's own takes one dtype only
    images = (1 + torch.randn(3, 3, 10, 14)).to(DEVICE, HALF)
    assert_stem_as_of_torch(stem, images.to(memory_format=torch.channels_last))


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
@HALVES
@pytest.mark.parametrize("shape", [(64, 3, 160, 160), (33, 3, 98, 90)], ids=str)
def test_stems_with_norms_of_runs(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    from clove_ssl.backbones.stem_convolution import convolve_and_sum

    stem = stem_of(dtype)
    images = (1 + torch.randn(shape)).to(DEVICE, dtype).to(memory_format=torch.channels_last)
    assert_stem_as_of_torch(stem, images)
    sizes = Sizes(shape[0], 64, shape[2] // 2, shape[3] // 2)
    for pixels, taps in (far_from_zero(sizes), far_from_zero(sizes._replace(depth=128))):
        out, sums = convolve_and_sum(pixels.to(dtype), taps)
        assert_sums_of(out, sums)


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
