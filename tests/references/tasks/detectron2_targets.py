"""Ground-truth boxes and anchor labels by Detectron2's rules, one number at a time.

Written from what its version 0.6 was seen to do: the corners of a COCO box are added in single
precision, resized and mirrored in double precision, cut at 0 and then at the image, and rounded to
single precision in the end. Overlaps and labels are in single precision throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Box = tuple[np.float32, np.float32, np.float32, np.float32]

BACKGROUND_BELOW, FOREGROUND_FROM = np.float32(0.3), np.float32(0.7)


def target_box(
    box: Sequence[float],  # x, y, width, height of the file
    *,
    old: tuple[int, int],  # height, width
    new: tuple[int, int],
    mirrored: bool,
) -> Box:
    """The corners that a detector learns."""
    x, y, width, height = (np.float32(value) for value in box)
    corners = [float(x), float(y), float(np.float32(x + width)), float(np.float32(y + height))]
    across, down = new[1] * 1.0 / old[1], new[0] * 1.0 / old[0]
    left, top, right, bottom = (
        value * factor for value, factor in zip(corners, (across, down) * 2, strict=True)
    )
    if mirrored:
        left, right = new[1] - right, new[1] - left
    cut = [max(value, 0.0) for value in (left, top, right, bottom)]
    x0, y0, x1, y1 = (
        np.float32(min(value, limit)) for value, limit in zip(cut, new[::-1] * 2, strict=True)
    )
    return x0, y0, x1, y1


def overlap(one: Sequence[np.float32], other: Sequence[np.float32]) -> np.float32:
    """Intersection over union, every operation rounded to single precision."""
    sides = [
        max(min(one[2 + axis], other[2 + axis]) - max(one[axis], other[axis]), np.float32(0))
        for axis in (0, 1)
    ]
    shared = sides[0] * sides[1]
    if not shared > 0:
        return np.float32(0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return np.float32(shared / (areas[0] + areas[1] - shared))


def anchor_labels(anchors: Sequence[Box], truth: Sequence[Box]) -> list[int]:
    """1, 0 or -1 of every anchor; all that tie for the best of an object are 1."""
    table = [[overlap(box, anchor) for anchor in anchors] for box in truth]
    largest = [max(row) for row in table]
    labels = []
    for column in zip(*table, strict=True):
        best = max(column)
        label = -1 if best >= BACKGROUND_BELOW else 0
        rescued = any(value == most for value, most in zip(column, largest, strict=True))
        labels.append(1 if rescued or best >= FOREGROUND_FROM else label)
    return labels
