"""Images of different sizes as one batch of normalised pixels.

Dimensions: B images, h x w pixels of an image, H x W of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.layers.transfers import constant, send_like

# Of RGB values from 0 to 255, as in all protocols of self-supervised backbones.
PIXEL_MEAN = (123.675, 116.28, 103.53)
PIXEL_STD = (58.395, 57.12, 57.375)


def stack_images(
    images: Sequence[Tensor],  # B x (3, h, w) uint8 RGB
    *,
    multiple: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Normalise, then pad with zeros at the right and at the bottom: (B, 3, H, W).

    H and W are those of the largest image, rounded up to a ``multiple``.
    """
    height, width = (
        -(-max(image.shape[axis] for image in images) // multiple) * multiple for axis in (1, 2)
    )
    device = images[0].device
    table = constant((*PIXEL_MEAN, *PIXEL_STD), device, dtype=dtype)  # (6,)
    # On a CPU torch's batch norm loses half of its digits in the other layout.
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    pixels = torch.empty(
        (len(images), 3, height, width), dtype=dtype, device=device, memory_format=layout
    )
    if _has_kernel(images, dtype):
        return _stack_on_gpu(images, pixels, table)
    mean, std = table.view(2, 3, 1, 1)
    # One subtraction for all, instead of one kernel per image.
    pixels.copy_(mean)  # which becomes zero, like the padding should be
    for place, image in zip(pixels, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return pixels.sub_(mean).div_(std)


def _has_kernel(images: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether a kernel of our own takes all images at once."""
    if torch.compiler.is_compiling() or dtype != torch.float32 or not has_triton():
        return False
    return all(each.is_cuda and each.dtype == torch.uint8 for each in images)


def _stack_on_gpu(images: Sequence[Tensor], pixels: Tensor, table: Tensor) -> Tensor:
    from clove_ssl.tasks.rcnn.pixels_kernel import stack_on_gpu

    stacked: Tensor = stack_on_gpu(images, pixels, table)
    return stacked


Pixels = npt.NDArray[np.uint8]  # (H, W, 3), or (H, W) for grey


def resized_shape(height: int, width: int, *, short_side: int, longest: int) -> tuple[int, int]:
    """The ``(height, width)`` an image is resized to.

    The limit of the longer side applies to the exact sizes; halves are rounded up at the end. A
    strip that would become thinner than a pixel keeps one.
    """
    if min(height, width) < 1:
        raise ValueError(f"an image of {height} x {width} pixels cannot be resized")
    scale = short_side / min(height, width)
    # The short side is set, not computed: a product could miss it by a rounding.
    if height < width:
        new_height, new_width = float(short_side), scale * width
    else:
        new_height, new_width = scale * height, float(short_side)
    if max(new_height, new_width) > longest:
        limit = longest / max(new_height, new_width)
        new_height, new_width = new_height * limit, new_width * limit
    return max(1, int(new_height + 0.5)), max(1, int(new_width + 0.5))


def resize_image(image: Pixels, shape: tuple[int, int]) -> Pixels:
    """Resize an image to ``(height, width)``."""
    height, width = shape
    if image.shape[:2] == shape:
        return image
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def resize_boxes(boxes: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Move boxes (N, 4) from an image of ``(height, width)`` to its resized version.

    The factors are those of the rounded sizes, so the two axes may differ a little.
    """
    scale = [new[1] / old[1], new[0] / old[0]] * 2
    return boxes * send_like(scale, boxes)
