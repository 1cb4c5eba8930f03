"""Random crops, drawn from rows of uniform numbers.

They are distributed as torchvision's ``RandomResizedCrop`` draws them, its
rounding, ten attempts and central fallback included. All are integers.

Dimensions: N images, R rows of K = ``UNIFORMS_PER_VIEW`` numbers each, T attempts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

UNIFORMS_PER_VIEW = 37
"""Numbers of a row; a crop takes the first 22."""

TOP, LEFT = 20, 21  # their places in a row
_ATTEMPTS = 10
_AREA = slice(0, _ATTEMPTS)
_RATIO = slice(_ATTEMPTS, 2 * _ATTEMPTS)


def draw_crops(
    rows: Floats,  # (N, R, K) in [0, 1)
    size: Integers,  # (N, 2) height, width of what is cropped
    *,
    scale: Floats,  # (R, 2) smallest and largest share of the area, or (2,)
    ratio: Floats,  # (R, 2) narrowest and widest width / height, or (2,)
) -> Integers:
    """Top, left, height and width of one crop per row, (N, R, 4)."""
    height, width = size[:, None, 0], size[:, None, 1]  # (N, 1) each
    area = between(rows[..., _AREA], scale[..., None, :])  # (N, R, T)
    area *= (height * width)[..., None]
    # Even in the logarithm, so 3:4 comes as often as 4:3.
    aspect = np.exp(between(rows[..., _RATIO], np.log(ratio)[..., None, :]))  # (N, R, T)
    widths = np.rint(np.sqrt(area * aspect)).astype(np.int64)  # (N, R, T)
    heights = np.rint(np.sqrt(area / aspect)).astype(np.int64)  # (N, R, T)
    fits = (widths > 0) & (widths <= width[..., None])
    fits &= (heights > 0) & (heights <= height[..., None])  # (N, R, T)

    # All ten attempts have their numbers whether they are needed or not: a row has one length, and
    # what follows the crop does not depend on when it fitted.
    first = fits.argmax(axis=-1)[..., None]  # (N, R, 1), 0 where none fits
    crop_height = np.take_along_axis(heights, first, axis=-1)[..., 0]  # (N, R)
    crop_width = np.take_along_axis(widths, first, axis=-1)[..., 0]  # (N, R)
    # Whole pixels, drawn from all places there are: geometry gets the very crop that is cut.
    top = np.floor(rows[..., TOP] * (height - crop_height + 1)).astype(np.int64)
    left = np.floor(rows[..., LEFT] * (width - crop_width + 1)).astype(np.int64)
    drawn = np.stack([top, left, crop_height, crop_width], axis=-1)  # (N, R, 4)
    any_fits = fits.any(axis=-1, keepdims=True)  # (N, R, 1)
    return np.where(any_fits, drawn, central_crop(size[:, None], ratio))


def central_crop(size: Integers, ratio: Floats) -> Integers:
    """The crop taken when no attempt fits: as much of the middle as the ratio allows.

    ``size`` is (..., 2) height, width, ``ratio`` (..., 2) the narrowest and widest
    width / height; returns (..., 4) top, left, height, width.
    """
    height, width = size[..., 0], size[..., 1]
    narrowest, widest = ratio[..., 0], ratio[..., 1]
    too_narrow = width / height < narrowest
    too_wide = width / height > widest
    crop_height = np.where(too_narrow, np.rint(width / narrowest), height).astype(np.int64)
    crop_width = np.where(too_wide, np.rint(height * widest), width).astype(np.int64)
    # Extreme ratios round to nothing on images a few pixels wide.
    crop_height, crop_width = np.maximum(crop_height, 1), np.maximum(crop_width, 1)
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return np.stack([top, left, crop_height, crop_width], axis=-1)


def boxes_of(crops: Integers) -> NDArray[np.float32]:
    """Top, left, height, width (..., 4) as x0, y0, x1, y1."""
    top, left, height, width = np.moveaxis(crops, -1, 0)
    boxes = np.stack([left, top, left + width, top + height], axis=-1)
    return boxes.astype(np.float32)


def between(uniforms: Floats, span: Floats) -> Floats:
    """Stretch numbers in [0, 1) to ``span`` (..., 2) low, high."""
    low, high = span[..., 0], span[..., 1]
    stretched: Floats = low + uniforms * (high - low)
    return stretched
