"""The first convolution of a ResNet, in a form that GPUs have fast kernels for.

It sees three channels, for which no fast kernel exists. Two by two pixels are therefore moved into
channels, where the same sum of the same products is a small convolution over sixteen channels.

Dimensions: B images, H x W pixels, D channels.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.fused_norm.activation import (
    Sums,
    has_triton,
    is_fused,
    normalize_relu_pool,
)

STEM_KERNEL = 7
CHANNELS = 16  # three colours of 2 x 2 pixels, and four empty channels to align them
HOPPER = 9  # compute capability of GPUs that our convolution is made for and measured on


def is_stem_convolution(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a module is the first convolution of a ResNet: 7 x 7, stride 2, three colours."""
    return (
        isinstance(module, nn.Conv2d)
        and module.in_channels == 3
        and module.kernel_size == (STEM_KERNEL, STEM_KERNEL)
        and (module.stride, module.padding) == ((2, 2), (3, 3))
        and (module.groups, module.dilation, module.bias) == (1, (1, 1), None)
        and module.padding_mode == "zeros"
    )


def convolve_by_depth(images: Tensor, weight: Tensor) -> Tensor:
    """A 7 x 7 convolution of stride 2 and padding 3, as one of 4 x 4 and stride 1.

    With a zero in front, the kernel has eight taps: tap k meets pixel 2 i + k - 4 for
    output i. Written as k = 2 a + b, that is row i + a - 2 of the pixels of parity b.

    Args:
        images: (B, 3, H, W) with even sides.
        weight: (D, 3, 7, 7).
    """
    return _by_depth(images, weight, norm=None)[0]


def convolve_normalize_pool(images: Tensor, weight: Tensor, norm: nn.Module) -> Tensor:
    """All that a ResNet does before its first block: also the norm, ReLU and pooling behind it."""
    out, sums = _by_depth(images, weight, norm)
    return normalize_relu_pool(norm, out, sums)


def _by_depth(images: Tensor, weight: Tensor, norm: nn.Module | None) -> tuple[Tensor, Sums | None]:
    """(B, D, H / 2, W / 2), and its sums if our kernels make it and ``norm`` has a use for them."""
    taps = F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), 2)  # (D, 12, 4, 4)
    taps = F.pad(taps, (0, 0, 0, 0, 0, CHANNELS - taps.shape[1]))
    if not _has_kernel(images):
        return F.conv2d(deep_pixels(images), taps), None
    pixels = _by_kernel(images)
    if not _has_convolution(pixels, taps):
        return F.conv2d(pixels, taps), None
    # What the convolution makes of pixels lies as they do, in the same dtype.
    return _convolve(pixels, taps, takes_sums=norm is not None and is_fused(norm, pixels))


def deep_pixels(images: Tensor) -> Tensor:
    """Two by two pixels as channels, with a border: (B, 3, H, W) -> (B, 16, H/2 + 3, W/2 + 3)."""
    pixels = F.pixel_unshuffle(images, 2)  # (B, 12, H / 2, W / 2)
    return F.pad(pixels, (2, 1, 2, 1, 0, CHANNELS - pixels.shape[1]))


def _by_kernel(images: Tensor) -> Tensor:
    """The same in one go; torch moves everything four times."""
    from clove_ssl.backbones.stem_kernel import deep_pixels

    half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else images.dtype
    return deep_pixels(images, channels=CHANNELS, dtype=half)


def _has_kernel(images: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and images.is_cuda
        and not images.requires_grad
        and images.is_contiguous(memory_format=torch.channels_last)
        and has_triton()
    )


def _convolve(pixels: Tensor, taps: Tensor, *, takes_sums: bool) -> tuple[Tensor, Sums | None]:
    """The convolution by our kernels, which read pixels less often than torch's."""
    from clove_ssl.backbones.stem_convolution import StemConvolution

    out, sums = StemConvolution.apply(pixels, taps, takes_sums)
    return out, sums


def _has_convolution(pixels: Tensor, taps: Tensor) -> bool:
    """Whether our kernels take these: halves, on a GPU with as much shared memory as they use."""
    from clove_ssl.backbones.stem_convolution import REACH

    is_cast = torch.is_autocast_enabled("cuda") and taps.dtype == torch.float32
    return (
        pixels.dtype in (torch.bfloat16, torch.float16)
        and (is_cast or taps.dtype == pixels.dtype)
        and taps.shape[0] % REACH == 0
        and pixels.numel() > 0
        and torch.cuda.get_device_capability(pixels.device)[0] == HOPPER
    )
