"""Triton kernels that render a group of views; import only where Triton is installed.

Five kernels, each over all views of a group at once:

    resize_across   source pixels -> crops as wide as the view         uint8
    resize_down     -> crops as views, and sums of their brightness    uint8
    colour          -> jitter and grey; views without blur are done    float16
    blur_across     -> of blurred views only                           float16
    blur_down       -> of blurred views only, done

A program renders one tile of one view, all three channels of it, and reads what is
particular to the view from tables (see ``parts.py``). Loops over taps run as
often as the program's own view needs, so photos of all sizes share a launch. Sums
are taken in a fixed order: the same batch always gives the same bits.

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
    REACH,
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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resample the rows of every crop to the width of the view, mirrored where it is flipped."""
    program = tl.program_id(0)
    view, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    rows, columns = parts.flat_tile(first_row, first_column, ROWS, COLUMNS)
    counts += view * COUNTS
    places += view * PLACES
    height = tl.load(counts + HEIGHT)
    if first_row < height:  # crops have different heights
        flip = tl.load(counts + FLIP)
        scale = tl.load(amounts + view * AMOUNTS + SCALE_ACROSS)
        # A mirrored pixel begins where its mirror image would: flips need no pass of their own.
        first, distance, step = parts.first_taps(columns, flip, scale, size, BICUBIC)
        width = tl.load(counts + WIDTH)
        next_channel = tl.load(counts + NEXT_CHANNEL)
        # The last row again for rows below the crop, where the source may end.
        lines = tl.minimum(rows, height - 1) * tl.load(counts + NEXT_ROW)
        crop = source + tl.load(places + SOURCE)
        total = tl.zeros((ROWS * COLUMNS,), dtype=tl.float32)
        red, green, blue = total, total, total
        for tap in range(0, tl.load(counts + TAPS_ACROSS)):
            x, weight = parts.tap_weights(first, distance, step, tap, width, BICUBIC)
            pixels = crop + (lines + x)
            red, green, blue = parts.add_weighted(red, green, blue, weight, pixels, next_channel)
            total += weight

        # Taps outside the crop weigh 0, and the sum of the others makes up for them. Rounded to
        # whole levels between the two passes, as on the CPU and in Pillow.
        red, green, blue = parts.levels(red, green, blue, 1.0 / total)
        into = middle + tl.multiple_of(tl.load(places + MIDDLE), 16)
        into += rows * size + columns
        parts.store(into, height * size, red, green, blue, (rows < height) & (columns < size))


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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Resample the columns of every crop to the height of the view, and add up brightness."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(size, ROWS)
    view, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    # Two axes, not one as in ``resize_across``: here a weight belongs to a whole row of the tile,
    # and pixels that are read together lie side by side in any case.
    rows = first_row + tl.arange(0, ROWS)
    columns = first_column + tl.arange(0, COLUMNS)
    counts += view * COUNTS
    amounts += view * AMOUNTS
    height = tl.load(counts + HEIGHT)
    flip = tl.load(counts + VERTICAL_FLIP)
    scale = tl.load(amounts + SCALE_DOWN)
    first, distance, step = parts.first_taps(rows, flip, scale, size, BICUBIC)
    # Aligned, as ``tables.py`` sees to, so that Triton may load several bytes at once.
    crop = middle + tl.multiple_of(tl.load(places + view * PLACES + MIDDLE), 16)
    black = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    red, green, blue = black, black, black
    total = tl.zeros((ROWS,), dtype=tl.float32)
    for tap in range(0, tl.load(counts + TAPS_DOWN)):
        y, weight = parts.tap_weights(first, distance, step, tap, height, BICUBIC)
        pixels = crop + (y[:, None] * size + columns[None, :])
        red, green, blue = parts.add_weighted(
            red, green, blue, weight[:, None], pixels, height * size
        )
        total += weight

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
        _store_view(into, next_channel, red, green, blue, solarize_from, inside)


@triton.jit(do_not_specialize=["side"])
def blur_across(
    coloured,
    across,  # (blurred views, 3, size, size)
    bands,  # (blurred views, side, side)
    blurred,  # (blurred views,) their places among all views
    counts,
    size,
    side,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Blur the rows of the views that are blurred."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(size, ROWS)
    blur_row, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    rows, columns = parts.flat_tile(first_row, first_column, ROWS, COLUMNS)
    area = size * size
    start = blur_row.to(tl.int64) * (3 * area)
    reach = tl.load(counts + tl.load(blurred + blur_row) * COUNTS + REACH)
    band = bands + blur_row.to(tl.int64) * (side * side)
    lines = tl.minimum(rows, size - 1) * size
    black = tl.zeros((ROWS * COLUMNS,), dtype=tl.float32)
    red, green, blue = black, black, black
    # As far as this view's blur reaches, however wide the others of the group are.
    for tap in range(0, 2 * reach + 1):
        x, weight = parts.band_weights(band, columns, tap - reach, size, side)
        pixels = coloured + start + (lines + x)
        red, green, blue = parts.add_weighted(red, green, blue, weight, pixels, area)
    into = across + start + (rows * size + columns)
    parts.store(into, area, red, green, blue, (rows < size) & (columns < size))


@triton.jit(do_not_specialize=["side"])
def blur_down(
    across,
    views,  # (views, 3, size, size) with steps of their own
    bands,
    blurred,
    counts,
    amounts,
    size,
    side,
    next_pixel,
    next_channel,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Blur the columns of the views that are blurred, solarise and normalise them."""
    program = tl.program_id(0)
    row_tiles = tl.cdiv(size, ROWS)
    blur_row, first_row, first_column = parts.tile_of(program, size, row_tiles, ROWS, COLUMNS)
    rows = first_row + tl.arange(0, ROWS)
    columns = first_column + tl.arange(0, COLUMNS)
    area = size * size
    view = tl.load(blurred + blur_row)
    reach = tl.load(counts + view * COUNTS + REACH)
    band = bands + blur_row.to(tl.int64) * (side * side)
    start = across + blur_row.to(tl.int64) * (3 * area)
    black = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    red, green, blue = black, black, black
    for tap in range(0, 2 * reach + 1):
        y, weight = parts.band_weights(band, rows, tap - reach, size, side)
        pixels = start + (y[:, None] * size + columns[None, :])
        red, green, blue = parts.add_weighted(red, green, blue, weight[:, None], pixels, area)
    inside = (rows < size)[:, None] & (columns < size)[None, :]
    solarize_from = tl.load(amounts + view * AMOUNTS + SOLARIZE_FROM)
    pixels = rows[:, None] * size + columns[None, :]
    into = views + view.to(tl.int64) * (3 * area) + pixels * next_pixel
    _store_view(into, next_channel, red, green, blue, solarize_from, inside)


@triton.jit
def _store_view(into, next_channel, red, green, blue, solarize_from, inside):
    """The last steps of every view: solarise, normalise, store."""
    # In this order: the threshold of solarisation is a grey level.
    red, green, blue = parts.normalized(
        parts.solarized(red, solarize_from),
        parts.solarized(green, solarize_from),
        parts.solarized(blue, solarize_from),
    )
    parts.store(into, next_channel, red, green, blue, inside)
