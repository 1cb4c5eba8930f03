"""Images of different sizes to one batch of normalised pixels, in one kernel; needs Triton.

The host would start a copy for every image, which takes it longer than all of them take the GPU.
"""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from clove_ssl.layers.transfers import send_tensor

_PIXELS = 1024  # of a program


def stack_on_gpu(
    images: Sequence[Tensor],  # B x (3, h, w) uint8
    pixels: Tensor,  # (B, 3, H, W) float32, channels last
    numbers: Tensor,  # (6,) float32, means and deviations of the channels
) -> Tensor:
    """Write images, normalised, and zeros beyond their borders into ``pixels``."""
    start = images[0].data_ptr()
    # Where an image lies, its sides, and how far apart channels, rows and columns are.
    table = np.array(
        [(each.data_ptr() - start, *each.shape[1:], *each.stride()) for each in images], np.int64
    )  # (B, 6)
    height, width = pixels.shape[2:]
    grid = (triton.cdiv(height * width, _PIXELS), len(images))
    _stack[grid](
        images[0],
        send_tensor(torch.from_numpy(table), pixels.device),
        pixels,
        numbers,
        height,
        width,
        BLOCK=_PIXELS,
    )
    return pixels


@triton.jit(do_not_specialize=["height", "width"])
def _stack(images, table, pixels, numbers, height, width, BLOCK: tl.constexpr):
    """Some pixels of one image."""
    image = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // width, place % width
    table += image * 6
    inside = (row < tl.load(table + 1)) & (column < tl.load(table + 2))
    source = images + tl.load(table)
    source += row * tl.load(table + 4) + column * tl.load(table + 5)
    # 64 bits: a batch may pass 2^31 values.
    pixels += (image.to(tl.int64) * height * width + place) * 3
    for channel in range(3):
        mean, deviation = tl.load(numbers + channel), tl.load(numbers + 3 + channel)
        value = tl.load(source + channel * tl.load(table + 3), mask=inside, other=0)
        # Rounded as torch divides, which Triton does not by itself.
        normalised = tl.div_rn(value.to(tl.float32) - mean, deviation)
        tl.store(pixels + channel, tl.where(inside, normalised, 0.0), mask=place < height * width)
