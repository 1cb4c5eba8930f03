"""Decoded images of different sizes in one piece of memory, and small arrays in one copy.

A batch of images crosses to the device as one block of bytes, wherever it was
decoded: worker processes pack what they decoded, one pinned copy moves it, and
images that were decoded on the device are packed there. Sizes and places stay on
the host, as plain numbers, because the host plans the work.

Dimensions: N images, image n is H_n x W_n pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clove_ssl.views.draw.crops import Integers

_ALIGNMENT = 16  # bytes; the widest load of a GPU thread
_LARGEST_IMAGE = 2**31  # bytes; places within one image are 32-bit numbers on the device


@dataclass(frozen=True)
class PackedImages:
    """RGB images one after the other: of each all red pixels, then green, then blue, row by row."""

    buffer: Tensor  # (bytes,) uint8
    offsets: Integers  # (N,) where each image starts in the buffer
    heights: Integers  # (N,)
    widths: Integers  # (N,)

    @classmethod
    def from_images(cls, images: Sequence[Tensor]) -> PackedImages:
        """Pack uint8 images (3, H, W), in whatever memory layout, on the device they are on."""
        for image in images:
            if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
                raise ValueError(
                    f"image is {image.dtype} {tuple(image.shape)}; expected uint8 (3, H, W)"
                )
            if image.numel() >= _LARGEST_IMAGE:
                raise ValueError(f"image of {image.numel()} bytes; expected less than 2 GiB")
        sizes = np.array([image.shape[1:] for image in images], dtype=np.int64).reshape(-1, 2)
        ends = np.cumsum(3 * sizes.prod(axis=1))  # (N,)
        return cls(
            buffer=torch.cat([image.reshape(-1) for image in images]),
            offsets=ends - 3 * sizes.prod(axis=1),
            heights=sizes[:, 0],
            widths=sizes[:, 1],
        )

    def __len__(self) -> int:
        """The number of images."""
        return len(self.offsets)

    def image(self, number: int) -> Tensor:
        """One image, (3, H, W), in the memory of the batch."""
        start, height, width = (
            int(each[number]) for each in (self.offsets, self.heights, self.widths)
        )
        return self.buffer[start : start + 3 * height * width].view(3, height, width)

    def gathered(self, *, pin_memory: bool) -> PackedImages:
        """Copies of these images alone, one after the other, in memory of the host."""
        lengths = 3 * self.heights * self.widths
        buffer = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=pin_memory)
        torch.cat([self.image(number).reshape(-1) for number in range(len(self))], out=buffer)
        return replace(self, buffer=buffer, offsets=np.cumsum(lengths) - lengths)

    def pin_memory(self) -> PackedImages:
        """The same images in page-locked memory; data loaders call this by its name."""
        return replace(self, buffer=self.buffer.pin_memory())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedImages:
        """The same images on another device."""
        return replace(self, buffer=self.buffer.to(device, non_blocking=non_blocking))


def send_together(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Copies of several small arrays on the device, by one transfer that nobody waits for."""
    starts, total = [], 0
    for array in arrays:
        starts.append(total)
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = torch.empty(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for start, array in zip(starts, arrays, strict=True):
        packed.numpy()[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    arrived = packed.to(device, non_blocking=True)
    return [
        arrived[start : start + array.nbytes]
        .view(torch.from_numpy(np.empty(0, array.dtype)).dtype)
        .view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]
