"""What the kernels of ``kernels.py`` are put together from, and the tables they read.

Functions here are written in Triton's language: what they take and return are
blocks of numbers, or one number that all threads of a program share. ``red``,
``green`` and ``blue`` are blocks of the same pixels, float32 from 0 to 255.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from clove_ssl.views.batch import IMAGENET_MEAN, IMAGENET_STD
from clove_ssl.views.render.photometry import LUMA_WEIGHTS

# The tables have one row per view. Columns of the table of places, 64-bit integers:
SOURCE = tl.constexpr(0)  # where the first pixel of the crop is
MIDDLE = tl.constexpr(1)  # where the crop goes once it is as wide as the view; a multiple of 16
PLACES = tl.constexpr(2)  # the number of columns

# Columns of the table of counts, 32-bit integers:
HEIGHT = tl.constexpr(0)  # of the crop
WIDTH = tl.constexpr(1)
NEXT_ROW = tl.constexpr(2)  # steps between rows and between channels of the source image
NEXT_CHANNEL = tl.constexpr(3)
TAPS_ACROSS = tl.constexpr(4)  # source pixels that one pixel of the view is made of
TAPS_DOWN = tl.constexpr(5)
FLIP = tl.constexpr(6)
VERTICAL_FLIP = tl.constexpr(7)
OPERATION = tl.constexpr(8)  # 4 columns: the colour operations in order
CONTRAST_AT = tl.constexpr(12)  # which of the four is contrast; -1 for none
THIRDS = tl.constexpr(13)  # of the colour circle that hue turns: 0, 1 or 2
GREY = tl.constexpr(14)
BLUR_ROW = tl.constexpr(15)  # place among the blurred views; -1 for none
REACH = tl.constexpr(16)  # of the blur
COUNTS = tl.constexpr(17)

# Columns of the table of amounts, 32-bit floats:
SCALE_ACROSS = tl.constexpr(0)  # source pixels per pixel of the view
SCALE_DOWN = tl.constexpr(1)
FACTOR = tl.constexpr(2)  # 4 columns: of the operations in order; of hue, sixths besides thirds
SOLARIZE_FROM = tl.constexpr(6)
AMOUNTS = tl.constexpr(7)

# Colour operations, numbered as ``ViewParameters.factors`` numbers them.
BRIGHTNESS = tl.constexpr(0)
CONTRAST = tl.constexpr(1)
SATURATION = tl.constexpr(2)
HUE = tl.constexpr(3)
NOTHING = tl.constexpr(4)

_RED_LUMA = tl.constexpr(LUMA_WEIGHTS[0])
_GREEN_LUMA = tl.constexpr(LUMA_WEIGHTS[1])
_BLUE_LUMA = tl.constexpr(LUMA_WEIGHTS[2])
_RED_MEAN = tl.constexpr(255 * IMAGENET_MEAN[0])
_GREEN_MEAN = tl.constexpr(255 * IMAGENET_MEAN[1])
_BLUE_MEAN = tl.constexpr(255 * IMAGENET_MEAN[2])
_RED_SCALE = tl.constexpr(1 / (255 * IMAGENET_STD[0]))
_GREEN_SCALE = tl.constexpr(1 / (255 * IMAGENET_STD[1]))
_BLUE_SCALE = tl.constexpr(1 / (255 * IMAGENET_STD[2]))


# --- tiles


@triton.jit
def tile_of(program, size, row_tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The view a program works on, and the first row and column of its tile."""
    # Programs side by side take tiles side by side: they read the same rows at the same time.
    column_tiles = tl.cdiv(size, COLUMNS)
    view = program // (row_tiles * column_tiles)
    first_row = program // column_tiles % row_tiles * ROWS
    return view, first_row, program % column_tiles * COLUMNS


@triton.jit
def flat_tile(first_row, first_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Row and column of every pixel of a tile, row by row in one line.

    Neighbouring threads then take neighbouring columns, which Triton cannot know to be
    the better choice where the columns that a pixel is made of are computed.
    """
    pixel = tl.max_contiguous(tl.arange(0, ROWS * COLUMNS), 1)
    return first_row + pixel // COLUMNS, first_column + pixel % COLUMNS


@triton.jit
def add_weighted(red, green, blue, weight, pixels, next_channel):
    """Add ``weight`` times the pixels in memory, whose red channel ``pixels`` points to."""
    # Without a mask: callers keep places inside, or inside the padding of a buffer.
    red += weight * tl.load(pixels).to(tl.float32)
    green += weight * tl.load(pixels + next_channel).to(tl.float32)
    blue += weight * tl.load(pixels + 2 * next_channel).to(tl.float32)
    return red, green, blue


@triton.jit
def store(pixels, next_channel, red, green, blue, inside):
    """Store three channels as whatever number type is at ``pixels``."""
    tl.store(pixels, _as_stored(red, pixels), mask=inside)
    tl.store(pixels + next_channel, _as_stored(green, pixels), mask=inside)
    tl.store(pixels + 2 * next_channel, _as_stored(blue, pixels), mask=inside)


@triton.jit
def _as_stored(values, pixels):
    if pixels.dtype.element_ty == tl.uint8:
        values = values.to(tl.int32)  # not every version converts floats to bytes directly
    return values.to(pixels.dtype.element_ty)


# --- resampling and blurring along one axis


@triton.jit
def first_taps(view_pixels, flip, scale, size, BICUBIC: tl.constexpr):
    """Source pixels with which the sums of some pixels of a view begin.

    Returns their places, which may lie before the crop, their distances from the
    middle of the filter in its own units, and how much a step adds to a distance.
    """
    view_pixels = tl.minimum(view_pixels, size - 1)  # a tile may be larger than the view
    seen = tl.where(flip != 0, size - 1 - view_pixels, view_pixels)
    center = scale * (seen.to(tl.float32) + 0.5)  # the middle of a pixel, as Pillow has it
    # The filter widens where a view is smaller than its crop; without that, fine texture would
    # turn into patterns that are not in the photo.
    shrinks_by = tl.maximum(scale, 1.0)
    support = shrinks_by
    if BICUBIC:
        support = 2.0 * shrinks_by
    first = tl.floor(center - support + 0.5)  # the first whose middle lies under the filter
    # The loop over taps then needs one multiplication for a distance, and no division.
    return first.to(tl.int32), (first + 0.5 - center) / shrinks_by, 1.0 / shrinks_by


@triton.jit
def tap_weights(first, distance, step, tap, length, BICUBIC: tl.constexpr):
    """Source pixels of one tap, kept inside the crop, and their weights: 0 if they had to be."""
    wanted = first + tap
    # Beyond the crop there are other pixels of the photo, or no memory at all.
    place = tl.minimum(tl.maximum(wanted, 0), length - 1)
    distance = tl.abs(distance + tap * step)
    if BICUBIC:  # Keys' cubic with a = -0.5, which Pillow uses
        near = (1.5 * distance - 2.5) * distance * distance + 1.0
        far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
        weight = tl.where(distance < 1.0, near, tl.where(distance < 2.0, far, 0.0))
    else:
        weight = tl.maximum(1.0 - distance, 0.0)
    return place, tl.where(place == wanted, weight, 0.0)


@triton.jit
def band_weights(band, pixels, offset, size, side):
    """Pixels that lie ``offset`` away, kept inside the view, and their weights in the blur.

    ``band`` is a small matrix (side, side) that stands for (size, size): between its
    first and last rows, those of the borders, its middle row repeats.
    """
    # Pixels up to the middle row have a row of their own, and so have the last ones, counted from
    # the end; all between them use the middle row.
    shift = tl.minimum(tl.maximum(pixels - side // 2, 0), size - side)
    row = tl.minimum(pixels - shift, side - 1)  # a tile may be larger than the view
    # Beyond the small matrix weights are 0: what would lie outside the view is part of the weight
    # of its border pixels already.
    column = row + offset
    known = (column >= 0) & (column < side)
    weight = tl.load(band + row * side + column, mask=known, other=0.0)
    return tl.minimum(tl.maximum(pixels + offset, 0), size - 1), weight


# --- pixel by pixel


@triton.jit
def levels(red, green, blue, factor):
    """The 8-bit values that are nearest after scaling, still as floats."""
    return (
        clamped(tl.floor(red * factor + 0.5)),
        clamped(tl.floor(green * factor + 0.5)),
        clamped(tl.floor(blue * factor + 0.5)),
    )


@triton.jit
def clamped(pixels):
    """Cut off below black and above white."""
    return tl.minimum(tl.maximum(pixels, 0.0), 255.0)


@triton.jit
def luma(red, green, blue):
    """Brightness as the eye sees it."""
    return _RED_LUMA * red + _GREEN_LUMA * green + _BLUE_LUMA * blue


@triton.jit
def luma_before(red, green, blue, counts, amounts, contrast_at):
    """Brightness after the colour operations that come before contrast, three at most."""
    for step in tl.static_range(3):
        if step < contrast_at:  # so none of them is contrast, and the mean is not looked at
            red, green, blue = jittered(red, green, blue, 0.0, counts, amounts, step)
    return luma(red, green, blue)


@triton.jit
def jittered(red, green, blue, mean, counts, amounts, step: tl.constexpr):
    """One colour operation of a view; ``mean`` is the brightness that contrast blends with."""
    # One view, one operation: all threads of a program take the same branch. Levels are cut off
    # after each, as Pillow does, or what overflowed would come back in the next.
    operation = tl.load(counts + OPERATION + step)
    factor = tl.load(amounts + FACTOR + step)
    if operation == BRIGHTNESS:
        red = clamped(red * factor)
        green = clamped(green * factor)
        blue = clamped(blue * factor)
    if operation == CONTRAST:
        rest = mean * (1.0 - factor)
        red = clamped(red * factor + rest)
        green = clamped(green * factor + rest)
        blue = clamped(blue * factor + rest)
    if operation == SATURATION:
        grey = luma(red, green, blue) * (1.0 - factor)
        red = clamped(red * factor + grey)
        green = clamped(green * factor + grey)
        blue = clamped(blue * factor + grey)
    if operation == HUE:
        thirds = tl.load(counts + THIRDS)
        red, green, blue = hue_turned(red, green, blue, thirds, factor)
    return red, green, blue


@triton.jit
def hue_turned(red, green, blue, thirds, sixths):
    """Turn the colour circle; ``photometry.adjust_hue_`` says how and why."""
    # Whole thirds exchange channels; what is left to turn is a sixth of the circle at most.
    first = tl.where(thirds == 1, blue, tl.where(thirds == 2, green, red))
    second = tl.where(thirds == 1, red, tl.where(thirds == 2, blue, green))
    third = tl.where(thirds == 1, green, tl.where(thirds == 2, red, blue))
    larger = tl.maximum(first, second)
    smaller = tl.minimum(first, second)
    high = tl.maximum(larger, third)
    low = tl.minimum(smaller, third)
    median = tl.maximum(smaller, tl.minimum(larger, third))
    way = (high - low) * sixths
    turned_red = _moved(first, second - third, way, low, median, high)
    turned_green = _moved(second, third - first, way, low, median, high)
    turned_blue = _moved(third, first - second, way, low, median, high)
    return turned_red, turned_green, turned_blue


@triton.jit
def _moved(channel, side, way, low, median, high):
    """A channel after the turn; ``side`` says which way the colour has left the channel's hue."""
    signed_way = tl.where(side > 0.0, way, tl.where(side < 0.0, -way, 0.0))
    return tl.minimum(tl.maximum(2.0 * channel - median - signed_way, low), high)


@triton.jit
def solarized(pixels, solarize_from):
    """Invert pixels from a value on."""
    return tl.where(pixels >= solarize_from, 255.0 - pixels, pixels)


@triton.jit
def normalized(red, green, blue):
    """Take ImageNet's mean and deviation out."""
    return (
        (red - _RED_MEAN) * _RED_SCALE,
        (green - _GREEN_MEAN) * _GREEN_SCALE,
        (blue - _BLUE_MEAN) * _BLUE_SCALE,
    )
