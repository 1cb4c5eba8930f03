"""A Triton kernel that moves two by two pixels into channels; import only where Triton is."""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CELLS = 256  # of a program


@triton.jit(do_not_specialize=["cells", "height", "width", "tall", "wide"])
def _move(images, out, cells, height, width, tall, wide, CHANNELS: tl.constexpr, R: tl.constexpr):
    """Channel 4 c + 2 y + x of a cell is colour c of its pixel (y, x); two cells border it."""
    cell = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    channel = tl.arange(0, CHANNELS)
    column, line = cell % wide - 2, (cell // wide) % tall - 2
    image = cell // (wide * tall)
    y = 2 * line[:, None] + (channel[None, :] // 2) % 2
    x = 2 * column[:, None] + channel[None, :] % 2
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    mask = inside & (cell < cells)[:, None] & (channel < 12)[None, :]
    at = ((image[:, None] * height + y) * width + x) * 3 + channel[None, :] // 4
    value = tl.load(images + at, mask=mask, other=0.0)
    there = out + cell[:, None] * CHANNELS + channel[None, :]
    tl.store(there, value.to(out.dtype.element_ty), mask=(cell < cells)[:, None])


def deep_pixels(images: Tensor, *, channels: int, dtype: torch.dtype) -> Tensor:
    """(B, 3, H, W) -> (B, channels, H / 2 + 3, W / 2 + 3), both channels last."""
    count, _, height, width = images.shape
    tall, wide = height // 2 + 3, width // 2 + 3
    out = torch.empty(
        (count, channels, tall, wide),
        dtype=dtype,
        device=images.device,
        memory_format=torch.channels_last,
    )
    cells = count * tall * wide
    _move[(triton.cdiv(cells, CELLS),)](
        images, out, cells, height, width, tall, wide, CHANNELS=channels, R=CELLS
    )
    return out
