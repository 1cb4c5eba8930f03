"""What a method gets: the views of a batch of images, and where they come from.

Pixels travel as uint8, 0 to 255, from the renderer through pinned memory to the
device, where :meth:`ViewBatch.normalized` makes them the floats a network
expects: a quarter of the traffic, and the arithmetic happens once.

Dimensions: B images, a view is h x w pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from clove_ssl.config.views import Role
from clove_ssl.layers.transfers import map_tensors
from clove_ssl.views.geometry import CropGeometry

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of red, green and blue, as shares of full brightness
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class View:
    """One view of every image of a batch."""

    pixels: Tensor  # (B, 3, h, w) RGB, uint8 or normalised floats
    geometry: CropGeometry
    role: Role
    foreground: Tensor | None = None
    """(B, 4) x0, y0, x1, y1 in pixels of a view that was pasted; around it is another image."""


@dataclass(frozen=True)
class ViewBatch:
    """All views of a batch of images, in the order of the method's specs."""

    views: tuple[View, ...]
    index: Tensor  # (B,) which images of the dataset these are
    labels: Tensor | None = None  # (B,) their classes, for methods that need them

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ViewBatch:
        """The same batch on another device."""
        return map_tensors(self, lambda each: each.to(device, non_blocking=non_blocking))

    def normalized(self, dtype: torch.dtype, *, channels_last: bool) -> ViewBatch:
        """The same batch with pixels as a network expects them: ImageNet mean 0 and deviation 1."""
        views = tuple(
            replace(view, pixels=normalize(view.pixels, dtype, channels_last=channels_last))
            for view in self.views
        )
        return replace(self, views=views)


def joined_pixels(views: Sequence[View]) -> Tensor:
    """Views of one size as one batch, (V * B, 3, h, w), one view after the other.

    A renderer that laid them side by side in memory made that batch already; then
    nothing is copied.
    """
    pixels = [view.pixels for view in views]
    first = pixels[0]
    if not all(_follows(first, other, place) for place, other in enumerate(pixels)):
        return torch.cat(pixels)
    shape = (len(pixels) * len(first), *first.shape[1:])
    return first.as_strided(shape, first.stride(), first.storage_offset())


def _follows(first: Tensor, other: Tensor, place: int) -> bool:
    """Whether ``other`` lies ``place`` batches behind ``first`` in the same memory."""
    return bool(
        other.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and (other.shape, other.stride()) == (first.shape, first.stride())
        and first.stride(0) == first[0].numel()
        and other.storage_offset() == first.storage_offset() + place * first.numel()
    )


def normalize(pixels: Tensor, dtype: torch.dtype, *, channels_last: bool) -> Tensor:
    """uint8 pixels (B, 3, h, w) to floats with ImageNet's mean and deviation taken out."""
    if pixels.dtype != torch.uint8:
        raise TypeError(f"pixels are {pixels.dtype}, not uint8: they are normalised already")
    scale, shift = normalization(pixels.device)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    # In fp32 first: shifted and scaled in bf16, neighbouring levels of a byte would fall together.
    floats = pixels.to(torch.float32, memory_format=layout)
    return torch.addcmul(shift, floats, scale).to(dtype)


@cache
def normalization(device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Scale and shift (3, 1, 1) with which ``scale * pixels + shift`` is normalised.

    Kept, because making them copies from the host, and that waits for the device.
    """
    mean = torch.tensor(IMAGENET_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD, device=device).view(3, 1, 1)
    return 1 / (255 * std), -mean / std
