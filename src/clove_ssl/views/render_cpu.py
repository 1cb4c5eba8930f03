"""Views of one image, rendered on the CPU by one thread.

The result is that of the released Pillow pipeline up to a few grey levels:
Pillow rounds after every operation, here the resized crop is rounded as there,
and from then on everything is float32 until the end.

The crop is resized by torch's 8-bit kernels, which are fast for images whose
channels lie side by side in memory, as decoders leave them.

Dimensions: the source image is H x W pixels, a view h x w.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.config.views import ViewSpec
from clove_ssl.views.blurring import blur
from clove_ssl.views.parameters import NEUTRAL_FACTORS, ViewParameters
from clove_ssl.views.photometry import JITTER, luma, solarize_


def render_views(
    image: Tensor,  # (3, H, W) uint8
    parameters: ViewParameters,  # of this image alone
    specs: Sequence[ViewSpec],
) -> tuple[Tensor, ...]:
    """All views of an image, (3, h, w) uint8 each."""
    _check(image, parameters, specs)
    image = _interleaved(image)
    return tuple(
        _rounded_(_render(image, parameters, view, spec)) for view, spec in enumerate(specs)
    )


def render_unrounded(
    image: Tensor, parameters: ViewParameters, specs: Sequence[ViewSpec]
) -> tuple[Tensor, ...]:
    """The same views as ``render_views`` before they are rounded, (3, h, w) float32 each."""
    _check(image, parameters, specs)
    image = _interleaved(image)
    return tuple(
        _render(image, parameters, view, spec).expand(3, -1, -1).contiguous()
        for view, spec in enumerate(specs)
    )


def _render(image: Tensor, parameters: ViewParameters, view: int, spec: ViewSpec) -> Tensor:
    """One view as floats, (3, h, w), or (1, h, w) if it is grey: its channels are all the same."""
    pixels = _resized_crop(image, parameters, view, spec).float()  # (3, h, w)
    factors = parameters.factors[0, view].tolist()
    for operation in parameters.order[0, view].tolist():
        if factors[operation] != NEUTRAL_FACTORS[operation]:
            pixels = JITTER[operation](pixels, factors[operation])
    if parameters.grey[0, view]:
        pixels = luma(pixels)  # (1, h, w)
    if parameters.sigma[0, view] > 0:
        pixels = blur(pixels, float(parameters.sigma[0, view]), spec.blur_kernel)
    if parameters.solarize[0, view]:
        pixels = solarize_(pixels, spec.solarize_threshold)
    return pixels


def _resized_crop(image: Tensor, parameters: ViewParameters, view: int, spec: ViewSpec) -> Tensor:
    top, left, height, width = parameters.crop[0, view].tolist()
    crop = image[None, :, top : top + height, left : left + width]  # (1, 3, height, width)
    size = (spec.size, spec.size)
    pixels = F.interpolate(crop, size, mode=spec.interpolation, antialias=True)[0]
    flips = [1] * bool(parameters.vertical_flip[0, view]) + [2] * bool(parameters.flip[0, view])
    return pixels.flip(flips) if flips else pixels


def _rounded_(pixels: Tensor) -> Tensor:
    """Nearest 8-bit values (3, h, w) of pixels that are not needed any more."""
    # By way of int16, because the direct conversion from float is not vectorised.
    levels = pixels.add_(0.5).to(torch.int16).to(torch.uint8)
    return levels.expand(3, -1, -1).contiguous()


def _interleaved(image: Tensor) -> Tensor:
    """The same image with the three channels of a pixel side by side in memory."""
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _check(image: Tensor, parameters: ViewParameters, specs: Sequence[ViewSpec]) -> None:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(f"image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)")
    if (len(parameters), parameters.views) != (1, len(specs)):
        raise ValueError(
            f"parameters are of {len(parameters)} images with {parameters.views} views; "
            f"expected one image with {len(specs)}"
        )
    height, width = parameters.image_size[0].tolist()
    if image.shape[1:] != (height, width):
        raise ValueError(
            f"image is {image.shape[2]} x {image.shape[1]} pixels, but its parameters were drawn "
            f"for {width} x {height}"
        )
