"""JPEG files to pixels on a GPU, a batch at a time, by nvJPEG.

nvJPEG gets what it decodes as ``decode`` would: complete, upright, ordinary colour
JPEGs of an allowed size. Everything else, other formats too, is decoded on the CPU
and copied over, so every file gives the picture that ``decode`` gives, or its
``DecodeError``. The two decoders are not equal bit for bit: they interpolate colour
between its samples in their own ways, which shows in single grey levels, and more at
hard edges of colour.

This is the only file that knows torchvision's decoder, which later versions of
torchvision hand over to another package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from clove_ssl.data.decode import DecodeError, decode
from clove_ssl.data.jpeg_header import read_header

BatchDecoder = Callable[[list[Tensor], torch.device], list[Tensor]]


def find_batch_decoder() -> BatchDecoder | None:
    """torchvision's nvJPEG decoder: files as uint8 (bytes,) to pictures, or None without one."""
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


def decode_jpegs(
    files: Sequence[bytes],
    device: torch.device | str,
    *,
    max_pixels: int,
    decoder: BatchDecoder | None = None,
) -> list[Tensor | DecodeError]:
    """The pictures of all files on the device, uint8 (3, H, W); of a bad file, its error.

    Args:
        files: Bytes of image files of any kind ``decode`` reads.
        device: Where the pictures should be.
        max_pixels: Larger pictures are refused.
        decoder: Who decodes ordinary JPEGs; by default nvJPEG.
    """
    decoder = decoder or find_batch_decoder()
    if decoder is None:
        raise RuntimeError(
            "this torchvision cannot decode JPEGs on the GPU; decode on the CPU instead"
        )
    device = torch.device(device)
    # Copies, because tensors may be written to and bytes may not.
    ordinary = {
        place: torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        for place, data in enumerate(files)
        if is_ordinary_jpeg(data, max_pixels)
    }
    pictures = _decode_together(ordinary, device, decoder)
    return [
        pictures[place] if place in pictures else _decode_on_cpu(data, device, max_pixels)
        for place, data in enumerate(files)
    ]


def is_ordinary_jpeg(data: bytes, max_pixels: int) -> bool:
    """Whether all decoders agree on what this file shows."""
    header = read_header(data)
    return (
        header is not None
        and header.complete
        and header.usual_coding
        and header.luma_chroma
        and header.components == 3
        and header.orientation == 1
        and 0 < header.height * header.width <= max_pixels
    )


def _decode_together(
    files: dict[int, Tensor], device: torch.device, decoder: BatchDecoder
) -> dict[int, Tensor]:
    """The pictures of all files that the decoder can read, by the same numbers."""
    if not files:
        return {}
    try:
        return dict(zip(files, decoder(list(files.values()), device), strict=True))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # one file breaks the batch, and nobody says which
        if len(files) == 1:
            return {}
    items = list(files.items())
    half = len(items) // 2
    return {
        **_decode_together(dict(items[:half]), device, decoder),
        **_decode_together(dict(items[half:]), device, decoder),
    }


def _decode_on_cpu(data: bytes, device: torch.device, max_pixels: int) -> Tensor | DecodeError:
    try:
        return decode(data, max_pixels=max_pixels).contiguous().to(device)
    except DecodeError as error:
        return error
