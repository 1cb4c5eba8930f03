"""Decoding of many JPEG files at once, on the GPU.

torchvision offers nvJPEG; from 0.29 on it moves to another package, so this is
the one place that knows where it is. Only files that every decoder reads alike
may come here: ``jpeg_header`` tells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BatchDecoder = Callable[[list[Tensor], torch.device], list[Tensor]]
"""Files as uint8 (bytes,) on the CPU to pictures as uint8 (3, H, W) on the device."""


def find_batch_decoder() -> BatchDecoder | None:
    """torchvision's nvJPEG decoder, or None where there is none.

    It raises ``RuntimeError`` when it cannot read one of the files, and does not say which.
    """
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError:
        return None
    if not hasattr(torch.ops.image, "decode_jpegs_cuda"):
        return None

    def decode_batch(files: list[Tensor], device: torch.device) -> list[Tensor]:
        pictures: list[Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
        return pictures

    return decode_batch
