"""Images of different sizes as one batch of normalised pixels.

Dimensions: B images, h x w pixels of an image, H x W of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clove_ssl.modules.transfers import send

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
    table = send([PIXEL_MEAN, PIXEL_STD], device, dtype=dtype)  # (2, 3)
    mean, std = table.view(2, 3, 1, 1)
    # On a CPU torch's batch norm loses half of its digits in the other layout.
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    pixels = torch.empty(
        (len(images), 3, height, width), dtype=dtype, device=device, memory_format=layout
    )
    pixels.copy_(mean)  # which becomes zero, like the padding should be
    for place, image in zip(pixels, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return pixels.sub_(mean).div_(std)
