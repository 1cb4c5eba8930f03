"""Where views come from, and which cells of two views show the same place.

Source coordinates are pixels, x to the right and y down; a box is x0, y0, x1,
y1 and its edges lie *between* pixels, so that x1 - x0 is the crop's width.

A **signed box** also carries the flips: x0 > x1 in a view that was mirrored,
y0 > y1 in one that was turned upside down. Walking from x0 to x1 is then
walking through the view from left to right, and nothing else has to know about
flips: cell sizes become negative and centres run backwards by themselves.

Nothing here knows about networks; nothing outside this room does arithmetic on boxes.

Dimensions: B images; a grid is (h, w) cells over a view, L = h * w of them in
row-major order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clove_ssl.layers.fp32 import at_least_fp32
from clove_ssl.layers.transfers import map_tensors

Coordinates = Literal["per-axis", "pixel"]
DistanceUnit = Literal["larger", "query"]
Grid = tuple[int, int]


@dataclass(frozen=True)
class CropGeometry:
    """The crops and flips that produced one view of every image of a batch."""

    boxes: Tensor  # (B, 4) x0, y0, x1, y1 in source pixels, x0 < x1 and y0 < y1
    flipped: Tensor  # (B,) bool, left-right
    flipped_vertically: Tensor  # (B,) bool, upside down
    image_size: Tensor  # (B, 2) height, width of the source images

    def signed_boxes(self, coordinates: Coordinates) -> Tensor:
        """The boxes with their flips, (B, 4).

        ``pixel`` keeps the edges in source pixels, so distances are the same in
        all directions. ``per-axis`` divides each axis by its own length and takes
        the centres of the outermost pixels as corners, as CLoVE's release does.
        """
        boxes = self.boxes if coordinates == "pixel" else self._per_axis_boxes()
        x0, y0, x1, y1 = boxes.unbind(-1)  # 4 x (B,)
        # The one place where a flip is taken into account; mirroring the grid as well would undo
        # it.
        left, right = _swapped_where(self.flipped, x0, x1)
        top, bottom = _swapped_where(self.flipped_vertically, y0, y1)
        return torch.stack([left, top, right, bottom], dim=-1)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> CropGeometry:
        """The same geometry on another device."""
        return map_tensors(self, lambda each: each.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> CropGeometry:
        """The same geometry in page-locked memory, from where a GPU copies it on its own."""
        return map_tensors(self, Tensor.pin_memory)

    def _per_axis_boxes(self) -> Tensor:
        # Corners are inclusive, so a crop of the whole image reaches from 0 to 1. Dividing by W and
        # H instead would change under 1 % of the pairs; axes on one scale, 17 % of those of a 4:3
        # photo.
        last_pixel = self.image_size.flip(-1).to(self.boxes.dtype) - 1  # (B, 2) x, y
        last_pixel = last_pixel.clamp(min=1)  # an image one pixel wide has only the coordinate 0
        first, behind = self.boxes[:, :2], self.boxes[:, 2:]  # (B, 2) each
        return torch.cat([first / last_pixel, (behind - 1) / last_pixel], dim=-1)  # (B, 4)


def cell_centers(boxes: Tensor, grid: Grid) -> Tensor:
    """Centres of a grid of cells laid over signed boxes, as (B, L, 2) x, y."""
    h, w = grid
    x0, y0, x1, y1 = boxes.unbind(-1)  # 4 x (B,)
    x = _centers_along(x0, x1, w)[:, None, :].expand(-1, h, -1)  # (B, h, w)
    y = _centers_along(y0, y1, h)[:, :, None].expand(-1, -1, w)  # (B, h, w)
    return torch.stack([x, y], dim=-1).flatten(1, 2)


def match_cells(
    boxes_a: Tensor,
    boxes_b: Tensor,
    grid_a: Grid,
    grid_b: Grid,
    threshold: float = 0.7,
    *,
    unit: DistanceUnit = "larger",
) -> Tensor:
    """Cells of two views that show the same place, (B, L_a, L_b) bool.

    Two cells match when their centres are strictly closer than ``threshold``
    cell diagonals: the larger of the two cells' diagonals, which makes the rule
    symmetric in the views, or with ``unit="query"`` that of the cells of ``a``.

    Args:
        boxes_a: Signed boxes (B, 4) in any unit that both views share.
        boxes_b: Signed boxes (B, 4) of another view of the same images.
        grid_a: Rows and columns of the feature map of the first view.
        grid_b: Rows and columns of the feature map of the second view.
        threshold: Radius in cell diagonals, not negative.
        unit: Whose diagonal it is.
    """
    if threshold < 0:
        raise ValueError(f"threshold={threshold} is negative; a distance never is")
    # Half precision cannot tell neighbouring pixels of a large image apart.
    boxes_a, boxes_b = at_least_fp32(boxes_a), at_least_fp32(boxes_b)
    ax0, ay0, ax1, ay1 = boxes_a.unbind(-1)  # 4 x (B,)
    bx0, by0, bx1, by1 = boxes_b.unbind(-1)  # 4 x (B,)
    dx2 = _squared_gaps(_centers_along(ax0, ax1, grid_a[1]), _centers_along(bx0, bx1, grid_b[1]))
    dy2 = _squared_gaps(_centers_along(ay0, ay1, grid_a[0]), _centers_along(by0, by1, grid_b[0]))
    # A squared distance is a sum over the axes, so rows and columns are compared on their own
    # first, which needs no (B, L_a, L_b, 2) tensor.
    distance2 = dy2[:, :, None, :, None] + dx2[:, None, :, None, :]  # (B, h_a, w_a, h_b, w_b)
    diagonal2 = _squared_diagonal(boxes_a, grid_a)  # (B,)
    if unit == "larger":
        diagonal2 = torch.maximum(diagonal2, _squared_diagonal(boxes_b, grid_b))
    limit2 = threshold**2 * diagonal2  # (B,)
    return (distance2 < limit2[:, None, None, None, None]).flatten(3, 4).flatten(1, 2)


def _swapped_where(condition: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(condition, second, first), torch.where(condition, first, second)


def _centers_along(start: Tensor, end: Tensor, count: int) -> Tensor:
    """Centres of ``count`` equal bins between ``start`` and ``end``, (B, count)."""
    index = torch.arange(count, dtype=start.dtype, device=start.device)  # (count,)
    bin_size = (end - start) / count  # (B,)
    # Half a bin in: with whole numbers as centres, crops of different sizes would be shifted
    # against each other by half a cell. In a mirrored view bins are negative and run from right to
    # left.
    return start[:, None] + (index + 0.5) * bin_size[:, None]


def _squared_gaps(a: Tensor, b: Tensor) -> Tensor:
    """Squared differences of all pairs, (B, n_a, n_b)."""
    return (a[:, :, None] - b[:, None, :]).square()


def _squared_diagonal(boxes: Tensor, grid: Grid) -> Tensor:
    """Squared diagonal of one grid cell, (B,)."""
    h, w = grid
    x0, y0, x1, y1 = boxes.unbind(-1)  # 4 x (B,)
    # Squares forget the sign, so flips do not matter here.
    return ((x1 - x0) / w).square() + ((y1 - y0) / h).square()
