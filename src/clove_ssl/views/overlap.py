"""The part of an image that two views share, and feature maps resampled to it.

Boxes are signed boxes of ``views/geometry.py``. Inside a view, places are
measured in its own unit square: 0 and 1 are its edges as the network sees them.
The shared rectangle is walked from left to right and from top to bottom *of the
image*, so in a mirrored view its place has x0 > x1, and maps resampled along it
come out un-mirrored.

Dimensions: B images, C channels, a map is h x w cells.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shared_rectangle(boxes_a: Tensor, boxes_b: Tensor) -> Tensor:
    """What two views share, (B, 4) in source coordinates; x1 <= x0 or y1 <= y0 if nothing."""
    # Unsigned corners: which part is shared does not depend on flips.
    first_a, last_a = _corners(boxes_a)  # (B, 2) each
    first_b, last_b = _corners(boxes_b)
    return torch.cat([torch.maximum(first_a, first_b), torch.minimum(last_a, last_b)], dim=1)


def area_share(rectangle: Tensor, boxes: Tensor) -> Tensor:
    """How much of a view's area a shared rectangle covers, (B,); 0 where nothing is shared."""
    width, height = (rectangle[:, 2:] - rectangle[:, :2]).clamp(min=0).unbind(-1)
    view_width, view_height = (boxes[:, 2:] - boxes[:, :2]).abs().unbind(-1)
    return (width * height) / (view_width * view_height)


def place_in_view(rectangle: Tensor, boxes: Tensor) -> Tensor:
    """A rectangle of the image in a view's unit square, (B, 4); x0 > x1 if that is mirrored."""
    start, extent = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]  # (B, 2); negative when mirrored
    return torch.cat(
        [(rectangle[:, :2] - start) / extent, (rectangle[:, 2:] - start) / extent], dim=1
    )


def resample(maps: Tensor, places: Tensor) -> Tensor:
    """Read (B, C, h, w) maps on a grid of h x w cells laid over ``places`` (B, 4).

    One bilinear sample per cell, at its centre: what RoI-align does for boxes
    inside the map. All channels of an image share one small matrix, so this is a
    product, with a gradient that is repeatable on every device.
    """
    x0, y0, x1, y1 = places.to(maps.dtype).unbind(-1)  # 4 x (B,)
    rows = _reading_weights(y0, y1, maps.shape[2])  # (B, h, h)
    columns = _reading_weights(x0, x1, maps.shape[3])  # (B, w, w)
    # Axis by axis would be fewer sums, but one tiny product for each of thousands of channels.
    weights = rows[:, :, None, :, None] * columns[:, None, :, None, :]  # (B, h, w, h, w)
    weights = weights.flatten(3).flatten(1, 2)  # (B, h*w, h*w)
    with torch.autocast(maps.device.type, enabled=False):  # the weights are fractions of cells
        cells = weights @ maps.flatten(2).mT  # (B, h*w, C), in the order that scores have as well
        return cells.mT.reshape(maps.shape)


def _corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Upper left and lower right corner in the image, (B, 2) each, flipped or not."""
    return torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])


def _reading_weights(start: Tensor, end: Tensor, count: int) -> Tensor:
    """Share of each old cell (column) in each new one (row) along one axis: (B, count, count)."""
    index = torch.arange(count, dtype=start.dtype, device=start.device)  # (count,)
    centers = start[:, None] + (end - start)[:, None] * (index + 0.5) / count  # (B, count)
    # Half a cell back, since cell 0 has its centre at 0.5.
    position = (centers * count - 0.5).clamp(0, count - 1)  # in cells; the border is repeated
    return (1 - (position[:, :, None] - index).abs()).clamp(min=0)
