"""A batch of views without images, for measuring and for compiling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clove_ssl.config.views import ViewSpec
from clove_ssl.views.batch import View, ViewBatch
from clove_ssl.views.geometry import CropGeometry


def synthetic_batch(
    specs: Sequence[ViewSpec], images: int, *, device: torch.device, dtype: torch.dtype
) -> ViewBatch:
    """Random pixels with plausible geometry and two classes, on the device."""
    generator = torch.Generator().manual_seed(0)
    pixels = _random_pixels(specs, images, device, dtype)
    views = [
        View(
            next(pixels[spec.size]),
            _random_geometry(images, generator).to(device),
            spec.role,
            _foreground(spec, images, device),
        )
        for spec in specs
    ]
    index = torch.arange(images, device=device)
    return ViewBatch(tuple(views), index, labels=index % 2)


def _foreground(spec: ViewSpec, images: int, device: torch.device) -> Tensor | None:
    """Where another image was pasted, for views that have such a place."""
    if spec.paste is None:
        return None
    box = torch.tensor([0.1, 0.1, 0.9, 0.9], device=device) * spec.size
    return box.expand(images, 4)


def _random_geometry(images: int, generator: torch.Generator) -> CropGeometry:
    corner = 100 * torch.rand(images, 2, generator=generator)
    side = 100 + 100 * torch.rand(images, 2, generator=generator)
    return CropGeometry(
        boxes=torch.cat([corner, corner + side], dim=1),
        flipped=torch.rand(images, generator=generator) < 0.5,
        flipped_vertically=torch.zeros(images, dtype=torch.bool),
        image_size=torch.tensor([320, 427]).expand(images, 2).contiguous(),
    )


def _random_pixels(
    specs: Sequence[ViewSpec], images: int, device: torch.device, dtype: torch.dtype
) -> dict[int, Iterator[Tensor]]:
    """Noise for the views of each size, which lie side by side as the renderer leaves them."""
    generator = torch.Generator(device).manual_seed(0)  # a run's own goes on untouched
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    views: dict[int, Iterator[Tensor]] = {}
    for size, count in Counter(spec.size for spec in specs).items():
        shape = (count * images, 3, size, size)
        noise = torch.randn(shape, device=device, generator=generator)
        noise = noise.to(dtype, memory_format=layout)
        views[size] = iter(torch.split(noise, images))
    return views
