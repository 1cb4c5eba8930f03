"""Views of one image, rendered on the CPU by one thread.

The result is that of the released Pillow pipeline up to a few grey levels:
Pillow rounds after every operation, here the resized crop is rounded as there,
and from then on everything is float32 until the end.

The crop is resized by torch's 8-bit kernels, which are fast for images whose
channels lie side by side in memory, as decoders leave them. Images that were
decoded at a fraction of their size have crops between pixels, which Pillow resizes.

Dimensions: the source image is H x W pixels, a view h x w.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from clove_ssl.config.views import Interpolation, ViewSpec
from clove_ssl.views.draw.parameters import NEUTRAL_FACTORS, ViewParameters
from clove_ssl.views.render.blurring import blur
from clove_ssl.views.render.photometry import JITTER, luma, solarize_

_PILLOW_FILTERS: dict[Interpolation, Image.Resampling] = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
}


def render_views(
    image: Tensor,  # (3, H, W) uint8
    parameters: ViewParameters,  # of this image alone
    specs: Sequence[ViewSpec],
    *,
    reduction: int = 1,
) -> tuple[Tensor, ...]:
    """All views of an image, (3, h, w) uint8 each.

    With ``reduction`` 2, 4 or 8 the image was decoded at that fraction of the size that
    its parameters were drawn for; the views show the same places.
    """
    _check(image, parameters, specs, reduction)
    image = _interleaved(image)
    return tuple(
        _rounded_(_render(image, parameters, view, spec, reduction))
        for view, spec in enumerate(specs)
    )


def possible_reduction(parameters: ViewParameters, specs: Sequence[ViewSpec]) -> int:
    """The largest of 1, 2, 4 and 8 that leaves every view of an image all its detail.

    A view has no use for pixels smaller than its own.
    """
    sizes = np.array([[spec.size] for spec in specs])  # (V, 1)
    detail = (parameters.crop[0, :, 2:] / sizes).min()
    return max(reduction for reduction in (1, 2, 4, 8) if reduction <= max(detail, 1))


def render_unrounded(
    image: Tensor, parameters: ViewParameters, specs: Sequence[ViewSpec]
) -> tuple[Tensor, ...]:
    """The same views as ``render_views`` before they are rounded, (3, h, w) float32 each."""
    _check(image, parameters, specs, reduction=1)
    image = _interleaved(image)
    return tuple(
        _render(image, parameters, view, spec, reduction=1).expand(3, -1, -1).contiguous()
        for view, spec in enumerate(specs)
    )


def _render(
    image: Tensor, parameters: ViewParameters, view: int, spec: ViewSpec, reduction: int
) -> Tensor:
    """One view as floats, (3, h, w), or (1, h, w) if it is grey: its channels are all the same."""
    crop = parameters.crop[0, view].tolist()
    resize = _resized_crop if reduction == 1 else partial(_resized_between, reduction=reduction)
    pixels = resize(image, crop, spec).float()  # (3, h, w)
    flips = [
        axis
        for axis, flipped in ((1, parameters.vertical_flip), (2, parameters.flip))
        if flipped[0, view]
    ]
    pixels = pixels.flip(flips) if flips else pixels
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


def _resized_crop(image: Tensor, crop: Sequence[int], spec: ViewSpec) -> Tensor:
    """The part ``crop`` (top, left, height, width) of an image, (3, h, w) uint8."""
    top, left, height, width = crop
    part = image[None, :, top : top + height, left : left + width]  # (1, 3, height, width)
    size = (spec.size, spec.size)
    return F.interpolate(part, size, mode=spec.interpolation, antialias=True)[0]


def _resized_between(
    image: Tensor, crop: Sequence[int], spec: ViewSpec, *, reduction: int
) -> Tensor:
    """The same part of an image that is smaller by ``reduction``, (3, h, w) uint8."""
    top, left, height, width = (edge / reduction for edge in crop)
    resized = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(
        (spec.size, spec.size),
        _PILLOW_FILTERS[spec.interpolation],
        box=(left, top, left + width, top + height),
    )
    return torch.from_numpy(np.array(resized)).permute(2, 0, 1)


def _rounded_(pixels: Tensor) -> Tensor:
    """Nearest 8-bit values (3, h, w) of pixels that are not needed any more."""
    # By way of int16, because the direct conversion from float is not vectorised.
    levels = pixels.add_(0.5).to(torch.int16).to(torch.uint8)
    return levels.expand(3, -1, -1).contiguous()


def _interleaved(image: Tensor) -> Tensor:
    """The same image with the three channels of a pixel side by side in memory."""
    return image.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def _check(
    image: Tensor, parameters: ViewParameters, specs: Sequence[ViewSpec], reduction: int
) -> None:
    if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
        raise ValueError(f"image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)")
    if (len(parameters), parameters.views) != (1, len(specs)):
        raise ValueError(
            f"parameters are of {len(parameters)} images with {parameters.views} views; "
            f"expected one image with {len(specs)}"
        )
    height, width = (-(-side // reduction) for side in parameters.image_size[0].tolist())
    if image.shape[1:] != (height, width):
        raise ValueError(
            f"image is {image.shape[2]} x {image.shape[1]} pixels, but its parameters were drawn "
            f"for {width} x {height}"
        )
