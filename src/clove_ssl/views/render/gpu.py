"""Views of a whole batch, rendered on the device from images of different sizes.

The result is that of ``cpu.render_unrounded``, normalised: the same crops,
filters, roundings, colour operations and borders, per image and view. It differs by
less than 0.1 grey levels on average, and by a few levels in single pixels: now and
then a resized pixel is rounded the other way, and colour operations stretch that.

There are two ways to it. Where Triton is installed and the images are on a CUDA
device, ``triton/launches.py`` renders with a handful of kernels per group of views.
Everywhere else the plain torch operations of ``plain.py`` do.

Dimensions: N images, V views of each; a view is h x w pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clove_ssl.config.views import ViewSpec
from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.views.draw.parameters import ViewParameters
from clove_ssl.views.render.groups import ViewGroup, group_views
from clove_ssl.views.render.packing import PackedImages
from clove_ssl.views.render.plain import render_groups as render_with_torch

Backend = Literal["auto", "triton", "torch"]


@torch.no_grad()
def render_batch(
    images: PackedImages | Sequence[Tensor],  # N of them; tensors are uint8 (3, H, W)
    parameters: ViewParameters,  # of N images and V views
    specs: Sequence[ViewSpec],  # V of them
    *,
    dtype: torch.dtype,
    channels_last: bool = True,
    backend: Backend = "auto",
) -> tuple[Tensor, ...]:
    """All views of a batch as a network expects them, V x (N, 3, h, w) on the images' device.

    Views of the same size share one piece of memory.
    """
    packed = images if isinstance(images, PackedImages) else PackedImages.from_images(images)
    _check(packed, parameters, specs)
    groups = group_views(parameters, specs)
    device = packed.buffer.device
    if backend == "triton" or (backend == "auto" and has_kernels(device)):
        from clove_ssl.views.render.triton.launches import render_groups as render_with_triton

        rendered = render_with_triton(packed, groups, dtype=dtype, channels_last=channels_last)
    else:
        rendered = render_with_torch(packed, groups, dtype=dtype, channels_last=channels_last)
    return _in_order(groups, rendered, images=len(packed))


def has_kernels(device: torch.device | str) -> bool:
    """Whether views on this device are rendered by Triton kernels."""
    return torch.device(device).type == "cuda" and has_triton()


def _in_order(
    groups: Sequence[ViewGroup], rendered: Sequence[Tensor], *, images: int
) -> tuple[Tensor, ...]:
    """The views (N, 3, h, w) in the order of the specs, from groups (G * N, 3, h, w)."""
    views = {
        view: together[place * images : (place + 1) * images]
        for group, together in zip(groups, rendered, strict=True)
        for place, view in enumerate(group.views)
    }
    return tuple(views[view] for view in sorted(views))


def _check(packed: PackedImages, parameters: ViewParameters, specs: Sequence[ViewSpec]) -> None:
    if (len(parameters), parameters.views) != (len(packed), len(specs)):
        raise ValueError(
            f"parameters are of {len(parameters)} images with {parameters.views} views; "
            f"expected {len(packed)} images with {len(specs)}"
        )
    sizes = np.stack([packed.heights, packed.widths], axis=-1)  # (N, 2)
    wrong = (sizes != parameters.image_size).any(axis=-1)  # (N,)
    if wrong.any():
        first = int(wrong.argmax())
        height, width = parameters.image_size[first]
        raise ValueError(
            f"image {first} is {sizes[first, 1]} x {sizes[first, 0]} pixels, but its parameters "
            f"were drawn for {width} x {height}"
        )
