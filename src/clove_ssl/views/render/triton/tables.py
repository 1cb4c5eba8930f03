"""What the kernels have to know about every view of a group, as arrays with one row per view.

Columns are numbered in ``parts.py``.

Dimensions: a group has M views of size S x S, B of them blurred.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clove_ssl.views.draw.crops import Floats, Integers
from clove_ssl.views.draw.parameters import NEUTRAL_FACTORS
from clove_ssl.views.render.blur_bands import blur_reaches
from clove_ssl.views.render.groups import ViewGroup
from clove_ssl.views.render.packing import PackedImages
from clove_ssl.views.render.triton import parts

_ALIGNMENT = 16  # elements, as ``parts.MIDDLE`` promises
_SUPPORT = {"bicubic": 2.0, "bilinear": 1.0}  # pixels on either side, when enlarging


class KernelTables(NamedTuple):
    """The arrays that go to the device."""

    places: NDArray[np.int64]  # (M, PLACES)
    counts: NDArray[np.int32]  # (M, COUNTS)
    amounts: NDArray[np.float32]  # (M, AMOUNTS)
    blurred: NDArray[np.int32]  # (B,) rows of the blurred views
    sigma: NDArray[np.float64]  # (B,) their blurs


def kernel_tables(images: PackedImages, group: ViewGroup) -> KernelTables:
    """The tables of one group."""
    counts = np.zeros((len(group), parts.COUNTS.value), dtype=np.int32)
    amounts = np.zeros((len(group), parts.AMOUNTS.value), dtype=np.float32)
    blurred = np.flatnonzero(group.sigma > 0).astype(np.int32)
    _fill_resizing(counts, amounts, images, group)
    _fill_colours(counts, amounts, group)
    counts[:, parts.BLUR_ROW.value] = -1
    counts[blurred, parts.BLUR_ROW.value] = np.arange(len(blurred))
    counts[:, parts.REACH.value] = blur_reaches(group.sigma, group.blur_kernel)
    return KernelTables(
        _places(images, group), counts, amounts, blurred, group.sigma[blurred].astype(np.float64)
    )


def middle_elements(group: ViewGroup) -> int:
    """Room that all crops of a group need once they are as wide as the views."""
    return int(_middle_sizes(group).sum())


def _places(images: PackedImages, group: ViewGroup) -> NDArray[np.int64]:
    top, left = group.crop[:, :2].T
    sizes = _middle_sizes(group)
    places = np.empty((len(group), parts.PLACES.value), dtype=np.int64)
    places[:, parts.SOURCE.value] = (
        images.offsets[group.image] + top * images.widths[group.image] + left
    )
    places[:, parts.MIDDLE.value] = np.cumsum(sizes) - sizes
    return places


def _middle_sizes(group: ViewGroup) -> Integers:
    needed = 3 * group.crop[:, 2] * group.size  # (M,)
    aligned: Integers = -(-needed // _ALIGNMENT) * _ALIGNMENT
    return aligned


def _fill_resizing(
    counts: NDArray[np.int32],
    amounts: NDArray[np.float32],
    images: PackedImages,
    group: ViewGroup,
) -> None:
    height, width = group.crop[:, 2:].T
    scale_down, scale_across = height / group.size, width / group.size
    source_width = images.widths[group.image]
    counts[:, parts.HEIGHT.value] = height
    counts[:, parts.WIDTH.value] = width
    counts[:, parts.NEXT_ROW.value] = source_width
    counts[:, parts.NEXT_CHANNEL.value] = source_width * images.heights[group.image]
    counts[:, parts.TAPS_ACROSS.value] = _taps(scale_across, _SUPPORT[group.interpolation])
    counts[:, parts.TAPS_DOWN.value] = _taps(scale_down, _SUPPORT[group.interpolation])
    counts[:, parts.FLIP.value] = group.flip
    counts[:, parts.VERTICAL_FLIP.value] = group.vertical_flip
    amounts[:, parts.SCALE_ACROSS.value] = scale_across
    amounts[:, parts.SCALE_DOWN.value] = scale_down


def _taps(scale: Floats, support: float) -> Integers:
    """Source pixels under the filter; those on its very edge weigh nothing and do not count."""
    return np.ceil(2 * support * np.maximum(scale, 1)).astype(np.int64)


def _fill_colours(
    counts: NDArray[np.int32], amounts: NDArray[np.float32], group: ViewGroup
) -> None:
    hue = parts.HUE.value
    thirds = np.rint(3 * group.factors[:, hue])  # (M,)
    factors = group.factors.copy()
    factors[:, hue] = 6 * factors[:, hue] - 2 * thirds  # what is left to turn, in sixths
    # What changes nothing is not done; contrast without effect needs no mean brightness either.
    is_neutral = group.factors == np.array(NEUTRAL_FACTORS)  # (M, 4)
    skipped = np.take_along_axis(is_neutral, group.order, axis=1)  # in order, as all that follows
    operations = np.where(skipped, parts.NOTHING.value, group.order)
    is_contrast = operations == parts.CONTRAST.value
    steps = np.arange(operations.shape[1])
    counts[:, parts.OPERATION.value + steps] = operations
    amounts[:, parts.FACTOR.value + steps] = np.take_along_axis(factors, group.order, axis=1)
    counts[:, parts.CONTRAST_AT.value] = np.where(
        is_contrast.any(axis=1), is_contrast.argmax(axis=1), -1
    )
    counts[:, parts.THIRDS.value] = thirds % 3
    counts[:, parts.GREY.value] = group.grey
    amounts[:, parts.SOLARIZE_FROM.value] = group.solarize_from
