"""Triton kernels that render a group of views; import only where Triton is installed.

Three kernels, each over all views of a group at once:

    resize_across   source pixels -> crops as wide as the view         uint8
    resize_down     -> crops as views, and sums of their brightness    uint8
    colour          -> jitter and grey; views without blur are done    float16

Those of ``blur_kernels.py`` follow for the others. A program renders one tile of one
view, all three channels of it, and reads what is particular to the view from tables
(see ``parts.py``). Loops over taps run as often as the program's own view needs, so
photos of all sizes share a launch; several taps are unrolled, because a thread that
asks for many pixels at once waits for memory only once. Sums are taken in a fixed
order: the same batch always gives the same bits.

Tiles may be larger than what is left of a view. Rows are then kept inside it, and
columns run on into whatever comes next, so buffers that are read in tiles end with
``PADDING`` unused elements; nothing that was read beyond the view is stored.
"""
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from clove_ssl.views.render.triton import parts

# By name, because Triton does not notice a change of constants that are looked up in a module.
from clove_ssl.views.render.triton.parts import (
    AMOUNTS,
    BLUR_ROW,
    CONTRAST_AT,
    COUNTS,
    FLIP,
    GREY,
    HEIGHT,
    MIDDLE,
    NEXT_CHANNEL,
    NEXT_ROW,
    PLACES,
    SCALE_ACROSS,
    SCALE_DOWN,
    SOLARIZE_FROM,
    SOURCE,
    TAPS_ACROSS,
    TAPS_DOWN,
    VERTICAL_FLIP,
    WIDTH,
)

PADDING = 512  # elements; at least as many as the widest tile has columns


# Numbers that change from batch to batch must not make Triton compile a kernel again.
@triton.jit(do_not_specialize=["row_tiles"])
def resize_across(
    source,  # all images
    middle,  # (3, crop height, size) of every view, each at its place
    places,
    counts,
    amounts,
    size,
    row_tiles,  # of the highest crop
    BICUBIC: tl.constexpr,
    TAPS: tl.constexpr,  # that are added up at once
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resample the rows of every crop to the width of the view, mirrored where it is flipped."""
    program = tl.program_id(0)
    view, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    counts += view * COUNTS
    places += view * PLACES
    height = tl.load(counts + HEIGHT)
    if first_row < height:  # crops have different heights
        rows = first_row + tl.arange(0, ROWS)
        columns = parts.lanes_along(first_column, COLUMNS)
        flip = tl.load(counts + FLIP)
        width = tl.load(counts + WIDTH)
        taps = tl.load(counts + TAPS_ACROSS)
        next_channel = tl.load(counts + NEXT_CHANNEL)
        scale = tl.load(amounts + view * AMOUNTS + SCALE_ACROSS)
        # A mirrored pixel begins where its mirror image would: flips need no pass of their own.
        start, distance, step = parts.windows(columns, flip, scale, size, width, taps, BICUBIC)
        # The last row again for rows below the crop, where the source may end.
        lines = tl.minimum(rows, height - 1) * tl.load(counts + NEXT_ROW)
        pixels = source + tl.load(places + SOURCE) + (lines[:, None] + start[None, :])
        red, green, blue, total = parts.weighted_sums(
            pixels, 1, next_channel, distance, step, taps, 0, TAPS, BICUBIC
        )

        # Weights inside the crop make up for what the filter would have reached outside. Rounded
        # to whole levels between the two passes, as on the CPU and in Pillow.
        red, green, blue = parts.levels(red, green, blue, (1.0 / total)[None, :])
        into = middle + tl.multiple_of(tl.load(places + MIDDLE), 16)
        into += rows[:, None] * size + columns[None, :]
        inside = (rows < height)[:, None] & (columns < size)[None, :]
        parts.store(into, height * size, red, green, blue, inside)


@triton.jit
def resize_down(
    middle,
    resized,  # (views, 3, size, size)
    sums,  # (views, tiles) of brightness, where contrast needs it
    places,
    counts,
    amounts,
    size,
    BICUBIC: tl.constexpr,
    TAPS: tl.constexpr,  # that are added up at once
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resample the columns of every crop to the height of the view, and add up brightness."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(size, ROWS)
    view, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    rows = first_row + tl.arange(0, ROWS)
    columns = first_column + tl.arange(0, COLUMNS)
    counts += view * COUNTS
    amounts += view * AMOUNTS
    height = tl.load(counts + HEIGHT)
    flip = tl.load(counts + VERTICAL_FLIP)
    taps = tl.load(counts + TAPS_DOWN)
    scale = tl.load(amounts + SCALE_DOWN)
    start, distance, step = parts.windows(rows, flip, scale, size, height, taps, BICUBIC)
    # Aligned, as ``tables.py`` sees to, so that Triton may load several bytes at once.
    crop = middle + tl.multiple_of(tl.load(places + view * PLACES + MIDDLE), 16)
    pixels = crop + (start[:, None] * size + columns[None, :])
    red, green, blue, total = parts.weighted_sums(
        pixels, size, height * size, distance, step, taps, 1, TAPS, BICUBIC
    )

    red, green, blue = parts.levels(red, green, blue, (1.0 / total)[:, None])
    inside = (rows < size)[:, None] & (columns < size)[None, :]
    # In 64 bits: a large batch has more elements than 32 bits can count.
    into = resized + view.to(tl.int64) * (3 * size * size)
    into += rows[:, None] * size + columns[None, :]
    parts.store(into, size * size, red, green, blue, inside)
    contrast_at = tl.load(counts + CONTRAST_AT)
    if contrast_at >= 0:
        # Contrast blends with the mean of the whole view, which no tile knows. Added up here, while
        # the pixels are at hand, it costs no pass of its own. Every tile has a place of its own:
        # atomic additions would come in any order, and the last bits of a sum with them.
        brightness = parts.luma_before(red, green, blue, counts, amounts, contrast_at)
        brightness = tl.where(inside, brightness, 0.0)
        tl.store(sums + program, tl.sum(tl.sum(brightness, axis=1), axis=0))


@triton.jit
def colour(
    resized,
    sums,
    coloured,  # (blurred views, 3, size, size)
    views,  # (views, 3, size, size) with steps of their own
    counts,
    amounts,
    size,
    sums_per_view,
    next_pixel,  # steps between neighbouring pixels and between channels of ``views``
    next_channel,
    PIXELS: tl.constexpr,
    SUMS: tl.constexpr,  # at least ``sums_per_view``
):
    """Jitter and grey; what is not blurred afterwards is solarised, normalised and done."""
    area = size * size
    tiles = tl.cdiv(area, PIXELS)
    view = tl.program_id(0) // tiles
    pixels = tl.program_id(0) % tiles * PIXELS + tl.arange(0, PIXELS)
    inside = pixels < area
    counts += view * COUNTS
    amounts += view * AMOUNTS
    crop = resized + view.to(tl.int64) * (3 * area) + pixels
    red = tl.load(crop, mask=inside, other=0).to(tl.float32)
    green = tl.load(crop + area, mask=inside, other=0).to(tl.float32)
    blue = tl.load(crop + 2 * area, mask=inside, other=0).to(tl.float32)

    # Every tile of a view adds up the view's sums again, instead of one more launch that does.
    place = tl.arange(0, SUMS)
    known = place < sums_per_view
    mean = tl.sum(tl.load(sums + view * sums_per_view + place, mask=known, other=0.0), axis=0)
    mean = mean / area  # means nothing, and is not used, in a view without contrast
    for step in tl.static_range(4):  # unrolled, so that columns of the tables are constants
        red, green, blue = parts.jittered(red, green, blue, mean, counts, amounts, step)
    if tl.load(counts + GREY) != 0:
        red = parts.luma(red, green, blue)
        green = red
        blue = red

    # All pixels of a program are of one view, so its threads never part ways here.
    blur_row = tl.load(counts + BLUR_ROW)
    if blur_row >= 0:
        unfinished = coloured + blur_row.to(tl.int64) * (3 * area) + pixels
        parts.store(unfinished, area, red, green, blue, inside)
    else:
        into = views + view.to(tl.int64) * (3 * area) + pixels * next_pixel
        solarize_from = tl.load(amounts + SOLARIZE_FROM)
        parts.store_view(into, next_channel, red, green, blue, solarize_from, inside)
