"""Groups of views by plain torch operations, on any device; what the kernels are held against.

A crop is resized by two matrices, ``rows @ crop @ columns.T``, whose rows are the
weights of one output pixel each; flips turn the matrices upside down. As on the
CPU, pixels are rounded to 8 bits after each of the two products.

Views are rendered in portions, so that the memory needed does not grow with the
batch.

Dimensions: M views of a group, a portion has P of them; crops are padded to H x W
pixels, the largest of the portion; a view is S x S.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from clove_ssl.config.views import Interpolation
from clove_ssl.views.batch import normalization
from clove_ssl.views.draw.parameters import NEUTRAL_FACTORS
from clove_ssl.views.render.blur_bands import blur_bands, blur_reaches, full_matrices
from clove_ssl.views.render.groups import ViewGroup
from clove_ssl.views.render.packing import PackedImages, send_together
from clove_ssl.views.render.photometry import LUMA_WEIGHTS, WHITE

_PORTION = 2**25  # padded pixels that are in work at once


def render_groups(
    images: PackedImages, groups: Sequence[ViewGroup], *, dtype: torch.dtype, channels_last: bool
) -> list[Tensor]:
    """The normalised views of each group, (M, 3, S, S)."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    scale, shift = normalization(images.buffer.device)
    rendered = []
    for group in groups:
        shape = (len(group), 3, group.size, group.size)
        views = torch.empty(shape, dtype=dtype, device=images.buffer.device, memory_format=layout)
        for portion in _portions(group):
            pixels = render_levels(images, group, portion)
            views[portion] = torch.addcmul(shift, pixels, scale).to(dtype)
        rendered.append(views)
    return rendered


def render_levels(images: PackedImages, group: ViewGroup, portion: slice) -> Tensor:
    """Views of a group as grey levels 0 to 255 in float32, (P, 3, S, S)."""
    pixels = _resized_crops(images, group, portion)
    order, factors, grey, sigma, solarize_from = send_together(
        [
            group.order[portion],
            group.factors[portion].astype(np.float32),
            group.grey[portion],
            group.sigma[portion],
            group.solarize_from[portion].astype(np.float32),
        ],
        pixels.device,
    )
    pixels = _jittered(pixels, order, factors)
    pixels = torch.where(_per_view(grey), _luma(pixels), pixels)
    pixels = _blurred(pixels, group, portion, sigma)
    return torch.where(pixels >= _per_view(solarize_from), WHITE - pixels, pixels)


def _portions(group: ViewGroup) -> Iterator[slice]:
    """Slices of the group's rows, as many rows at a time as the largest crop allows."""
    pixels = 3 * int(group.crop[:, 2].max(initial=1)) * int(group.crop[:, 3].max(initial=1))
    rows = max(1, _PORTION // max(pixels, 3 * group.size**2))
    for start in range(0, len(group), rows):
        yield slice(start, min(start + rows, len(group)))


# --- resizing


def _resized_crops(images: PackedImages, group: ViewGroup, portion: slice) -> Tensor:
    """Crops as views, flipped, in whole grey levels, (P, 3, S, S) float32."""
    crop = group.crop[portion]  # (P, 4)
    lengths, flips, places = send_together(
        [
            crop[:, 2:],
            np.stack([group.vertical_flip[portion], group.flip[portion]], axis=-1),
            _places(images, group, portion),
        ],
        images.buffer.device,
    )
    height, width = crop[:, 2:].max(axis=0).tolist()
    rows = resize_matrices(
        lengths[:, 0], flips[:, 0], group.size, longest=height, interpolation=group.interpolation
    )  # (P, S, H)
    columns = resize_matrices(
        lengths[:, 1], flips[:, 1], group.size, longest=width, interpolation=group.interpolation
    )  # (P, S, W)
    crops = _padded_crops(images.buffer, lengths, places, height=height, width=width)
    across = _whole_levels(crops @ columns[:, None].mT)  # (P, 3, H, S)
    return _whole_levels(rows[:, None] @ across)


def resize_matrices(
    lengths: Tensor, flipped: Tensor, size: int, *, longest: int, interpolation: Interpolation
) -> Tensor:
    """Antialiased resampling from axes of ``lengths`` (P,) pixels to ``size``: (P, size, longest).

    The filter widens with the reduction, and at the border the weights inside the
    crop share what would lie outside. A row of an axis that is flipped belongs to
    the pixel at the other end.
    """
    scale = lengths.double()[:, None, None] / size  # (P, 1, 1)
    view_pixel = torch.arange(size, device=lengths.device)
    view_pixel = torch.where(flipped[:, None], size - 1 - view_pixel, view_pixel)  # (P, size)
    pixel = torch.arange(longest, device=lengths.device)  # (longest,)
    center = scale * (view_pixel[:, :, None] + 0.5)  # (P, size, 1)
    distance = (pixel + 0.5 - center).abs() / scale.clamp(min=1)  # (P, size, longest)
    weights = _cubic(distance) if interpolation == "bicubic" else (1 - distance).clamp(min=0)
    weights = weights * (pixel < lengths[:, None, None])
    return (weights / weights.sum(dim=-1, keepdim=True)).float()


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic convolution with a = -0.5, which Pillow uses, at distances of 0 and more."""
    near = (1.5 * distance - 2.5) * distance.square() + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def _places(images: PackedImages, group: ViewGroup, portion: slice) -> np.ndarray:
    """Of every crop: where its first pixel is, and how far the next row and channel are."""
    image, (top, left) = group.image[portion], group.crop[portion, :2].T
    width = images.widths[image]
    first = images.offsets[image] + top * width + left
    return np.stack([first, width, width * images.heights[image]], axis=-1)  # (P, 3)


def _padded_crops(
    buffer: Tensor, lengths: Tensor, places: Tensor, *, height: int, width: int
) -> Tensor:
    """The crops as floats, (P, 3, H, W); beyond a crop's end its last row and column repeat."""
    y = torch.arange(height, device=buffer.device).minimum(lengths[:, :1] - 1)  # (P, H)
    x = torch.arange(width, device=buffer.device).minimum(lengths[:, 1:] - 1)  # (P, W)
    first, next_row, next_channel = places.T[..., None]  # 3 x (P, 1)
    channel = first + next_channel * torch.arange(3, device=buffer.device)  # (P, 3)
    lines = (y * next_row)[:, None, :, None] + x[:, None, None, :]  # (P, 1, H, W)
    return buffer[channel[:, :, None, None] + lines].float()


def _whole_levels(pixels: Tensor) -> Tensor:
    return (pixels + 0.5).floor_().clamp_(0, WHITE)


# --- colours


def _jittered(pixels: Tensor, order: Tensor, factors: Tensor) -> Tensor:
    """The four colour operations of every view in the view's own order."""
    neutral = torch.tensor(NEUTRAL_FACTORS, device=pixels.device)
    for step in range(len(NEUTRAL_FACTORS)):
        # All operations run at every step, but only the one whose turn it is does something.
        turn = torch.nn.functional.one_hot(order[:, step], len(NEUTRAL_FACTORS)).bool()  # (P, 4)
        now = torch.where(turn, factors, neutral).T[..., None, None, None]  # (4, P, 1, 1, 1)
        brightness, contrast, saturation, hue = now
        pixels = (pixels * brightness).clamp_(0, WHITE)
        mean = _luma(pixels).mean(dim=(2, 3), keepdim=True)  # (P, 1, 1, 1)
        pixels = pixels.lerp(mean, 1 - contrast).clamp_(0, WHITE)
        pixels = pixels.lerp(_luma(pixels), 1 - saturation).clamp_(0, WHITE)
        pixels = _hue_turned(pixels, hue)
    return pixels


def _luma(pixels: Tensor) -> Tensor:
    """Brightness as the eye sees it, (P, 1, S, S)."""
    red, green, blue = pixels[:, :1], pixels[:, 1:2], pixels[:, 2:]  # (P, 1, S, S) each
    return LUMA_WEIGHTS[0] * red + LUMA_WEIGHTS[1] * green + LUMA_WEIGHTS[2] * blue


def _hue_turned(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the colour circle; ``photometry.adjust_hue_`` says how and why."""
    thirds = torch.round(3 * turns)  # (P, 1, 1, 1)
    sixths = 6 * turns - 2 * thirds
    once, twice = thirds.remainder(3) == 1, thirds.remainder(3) == 2
    pixels = torch.where(once, pixels.roll(1, dims=1), pixels)
    pixels = torch.where(twice, pixels.roll(2, dims=1), pixels)
    ordered = pixels.sort(dim=1).values
    low, median, high = ordered[:, :1], ordered[:, 1:2], ordered[:, 2:]  # (P, 1, S, S) each
    side = (pixels.roll(-1, dims=1) - pixels.roll(-2, dims=1)).sign()
    moved = 2 * pixels - median - side * (high - low) * sixths
    return torch.minimum(torch.maximum(moved, low), high)


def _blurred(pixels: Tensor, group: ViewGroup, portion: slice, sigma: Tensor) -> Tensor:
    sigmas = group.sigma[portion]
    if not (sigmas > 0).any():
        return pixels
    reach = int(blur_reaches(sigmas, group.blur_kernel).max())
    bands = blur_bands(sigma, group.size, reach=reach, kernel=group.blur_kernel)
    matrices = full_matrices(bands, group.size)[:, None]  # (P, 1, S, S)
    return matrices @ pixels @ matrices.mT


def _per_view(values: Tensor) -> Tensor:
    """(P,) as (P, 1, 1, 1), to go with pixels."""
    return values[:, None, None, None]
