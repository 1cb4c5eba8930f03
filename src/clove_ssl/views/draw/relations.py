"""Views that depend on other views: drawn again, cut from one frame, pasted, flipped alike.

What they need beyond a row of numbers of their own comes from further rows,
which follow the rows of all views, in the order of the specs. Views that stand
alone have none, so nothing changes for them.

Dimensions: N images, V views, K numbers of a row, P patches of a frame, T draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from clove_ssl.config.views import OverlapSpec, PatchSpec, ViewSpec
from clove_ssl.views.draw.crops import LEFT, TOP, Floats, Integers, boxes_of, draw_crops
from clove_ssl.views.overlap import area_share, shared_rectangle

_CELL = 0  # place in a patch's row; its crop comes from the frame's, so its own is free


def rows_of_numbers(specs: Sequence[ViewSpec]) -> int:
    """Rows of uniform numbers that one image takes."""
    return len(specs) + sum(_further_rows(spec, view) for view, spec in enumerate(specs))


def split_rows(rows: Floats, specs: Sequence[ViewSpec]) -> tuple[Floats, dict[int, Floats]]:
    """The views' own rows (N, V, K), and the further (N, n, K) of those that have some."""
    further, start = {}, len(specs)
    for view, spec in enumerate(specs):
        count = _further_rows(spec, view)
        if count:
            further[view] = rows[:, start : start + count]
            start += count
    return rows[:, : len(specs)], further


def related_crops(
    crops: Integers,  # (N, V, 4) as if every view stood alone
    own: Floats,  # (N, V, K)
    further: dict[int, Floats],
    size: Integers,  # (N, 2) of the source images
    specs: Sequence[ViewSpec],
) -> Integers:
    """The crops with those replaced that depend on others, (N, V, 4)."""
    crops = crops.copy()
    for view, rows in further.items():
        spec = specs[view]
        scale, ratio = np.array(spec.scale), np.array(spec.ratio)
        if spec.overlap is not None:
            again = draw_crops(rows, size, scale=scale, ratio=ratio)  # (N, T - 1, 4)
            tried = np.concatenate([crops[:, view, None], again], axis=1)  # (N, T, 4)
            crops[:, view] = _first_sharing(tried, crops[:, spec.overlap.view], spec.overlap)
        if spec.patch is not None:
            patches = slice(view, view + spec.patch.grid**2)
            frames = draw_crops(rows, size, scale=scale, ratio=ratio)  # (N, 1, 4)
            corners = patch_corners(own[:, patches], spec.patch, spec.size)  # (N, P, 2)
            crops[:, patches] = _cut(frames, corners, spec.patch, spec.size)
    return crops


def paste_rectangles(
    further: dict[int, Floats], specs: Sequence[ViewSpec], images: int
) -> Integers:
    """Top, left, height and width of what views show of their own image, in their pixels."""
    rectangles = np.zeros((images, len(specs), 4), np.int64)
    for view, spec in enumerate(specs):
        rectangles[:, view, 2:] = spec.size
        if spec.paste is not None:
            size = np.full((images, 2), spec.size)
            area, ratio = np.array(spec.paste.area), np.array(spec.paste.ratio)
            drawn = draw_crops(further[view], size, scale=area, ratio=ratio)  # (N, 1, 4)
            rectangles[:, view] = drawn[:, 0]
    return rectangles


def patch_corners(rows: Floats, spec: PatchSpec, size: int) -> Integers:
    """Top and left of every patch in its frame, (N, P, 2), from the patches' rows (N, P, K)."""
    cells = rows[..., _CELL].argsort(axis=-1)  # (N, P) which cell a patch comes from
    room = spec.cell - size + 1
    offsets = np.floor(rows[..., [TOP, LEFT]] * room).astype(np.int64)  # (N, P, 2)
    corners: Integers = offsets + spec.cell * np.stack(np.divmod(cells, spec.grid), axis=-1)
    return corners


def alike(specs: Sequence[ViewSpec]) -> tuple[Integers, Integers]:
    """For every view the one whose flips it has, and the one whose colours it has: (V,) each."""
    colors = [view if spec.patch is None else spec.patch.first for view, spec in enumerate(specs)]
    flips = [
        color if spec.flips_like is None else spec.flips_like
        for color, spec in zip(colors, specs, strict=True)
    ]
    return np.array(flips), np.array(colors)


def _further_rows(spec: ViewSpec, view: int) -> int:
    if spec.overlap is not None:
        return spec.overlap.redraws
    begins_frame = spec.patch is not None and spec.patch.first == view
    return int(begins_frame or spec.paste is not None)


def _first_sharing(tried: Integers, other: Integers, spec: OverlapSpec) -> Integers:
    """The first of (N, T, 4) crops that shares enough with (N, 4), or the last: (N, 4)."""
    theirs = np.broadcast_to(other[:, None], tried.shape)
    boxes, others = (torch.from_numpy(boxes_of(each)).flatten(0, 1) for each in (tried, theirs))
    share = area_share(shared_rectangle(boxes, others), boxes).numpy().reshape(tried.shape[:2])
    enough = (share > 0) & (share >= spec.share)  # (N, T)
    enough[:, -1] = True
    first = enough.argmax(axis=1)[:, None, None]  # (N, 1, 1)
    chosen: Integers = np.take_along_axis(tried, first, axis=1)[:, 0]
    return chosen


def _cut(frames: Integers, corners: Integers, spec: PatchSpec, size: int) -> Integers:
    """Patches (N, P, 4) in source pixels, from frames (N, 1, 4) and corners (N, P, 2) in them."""
    start, extent = frames[..., :2], frames[..., 2:]  # (N, 1, 2) each
    begin = np.rint(corners * extent / spec.frame).astype(np.int64)  # (N, P, 2)
    end = np.rint((corners + size) * extent / spec.frame).astype(np.int64)
    begin = np.minimum(begin, extent - 1)  # frames of a few pixels have no room for nine patches
    return np.concatenate([start + begin, np.maximum(end - begin, 1)], axis=-1)
