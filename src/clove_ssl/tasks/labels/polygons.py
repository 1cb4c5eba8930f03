"""Polygons to binary masks, with the filling rule of the COCO tools.

That rule draws the outline on a grid five times finer, keeps the places where it passes from one
column of pixel centres to the next, and fills the runs between them, column by column. It decides
single pixels, so masks are comparable with the published ones only if it is the same. Here only
these places are computed, and not the outline between them.

All polygons of a call are filled together, on any device, because a training step needs the masks
of hundreds of regions. Rows of different lengths lie behind each other: a table of lengths says
where each begins.

Dimensions: R regions, G objects, Q polygons, V corners (and edges from each to the next one),
E places where edges pass from a column to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clove_ssl.layers.fused_norm.activation import has_triton
from clove_ssl.layers.transfers import HostCopy, send_tensor
from clove_ssl.tasks.labels.rle import RLE, decode_mask
from clove_ssl.tasks.labels.samples import Polygons

Polygon = npt.NDArray[np.float64]  # (2k,) x0, y0, x1, y1, ... in pixels
Mask = npt.NDArray[np.bool_]

FINER = 5
SMALLEST_SIDE = 0.1
LARGEST = 62  # pixels of a side for the kernel, which keeps a column in a number of 64 bits


class PackedOutlines(NamedTuple):
    """The polygons of many objects; an object may have several."""

    corners: Tensor  # (V, 2) float64, x, y
    following: Tensor  # (V,) int64, how far away the next corner of the same polygon is
    polygon: Tensor  # (V,) int64, counted in every object
    object_sizes: Tensor  # (2, G) int64, corners and polygons of each object

    def to(self, device: torch.device) -> PackedOutlines:
        """The outlines on a device."""
        return PackedOutlines(*(send_tensor(column, device) for column in self))


class _Edges(NamedTuple):
    """Edges on the finer grid, drawn from their lower end on the longer axis."""

    first_column: Tensor  # (V,) int64, of those that they leave or enter
    columns: Tensor  # (V,) int64, how many
    steep: Tensor  # (V,) bool, the longer axis is y
    along: Tensor  # (V,) float64, the lower end on the longer axis
    across: Tensor  # (V,) float64, the same end on the shorter axis
    slope: Tensor  # (V,) float64, rise of the shorter axis along the longer one


def pack_outlines(objects: Sequence[Sequence[Polygon]]) -> PackedOutlines:
    """Put the polygons of G objects behind each other."""
    polygons = [polygon for each in objects for polygon in each]
    sizes = np.array([len(polygon) // 2 for polygon in polygons], np.int64)  # (Q,)
    ends = sizes.cumsum()
    flat = np.concatenate(polygons) if polygons else np.zeros(0)
    following = np.ones(len(flat) // 2, np.int64)
    # The last corner of a polygon is followed by its first.
    following[ends[sizes > 0] - 1] = 1 - sizes[sizes > 0]
    number = np.array([number for each in objects for number in range(len(each))], np.int64)
    per_object = [[sum(len(polygon) // 2 for polygon in each), len(each)] for each in objects]
    return PackedOutlines(
        torch.from_numpy(np.asarray(flat, np.float64)).view(-1, 2),
        torch.from_numpy(following),
        torch.from_numpy(np.repeat(number, sizes)),
        torch.tensor(per_object, dtype=torch.int64).view(-1, 2).T,
    )


def join_outlines(parts: Sequence[PackedOutlines]) -> PackedOutlines:
    """The outlines of the objects of several images, one image behind the other."""
    return PackedOutlines(
        corners=torch.cat([part.corners for part in parts]),
        following=torch.cat([part.following for part in parts]),
        polygon=torch.cat([part.polygon for part in parts]),
        object_sizes=torch.cat([part.object_sizes for part in parts], dim=1),
    )


def begin_masks(
    outlines: PackedOutlines,
    objects: Tensor,  # (R,) which object a region shows
    boxes: Tensor,  # (R, 4)
    *,
    size: int,
    totals: Sequence[int],
) -> PendingMasks | DrawnMasks:
    """The part of an object inside a box, stretched to ``size x size``: (R, size, size) bool.

    A side of a box counts as 0.1 pixels at least. ``totals`` are the corners and polygons of all R.

    How often edges pass from a column to the next is known to the device alone. That number is
    sent for at once and read by ``read``, so that work queued in between hides the wait. A GPU has
    a kernel that does not ask for it.
    """
    if _has_kernel(boxes, size):
        return _drawn_on_gpu(outlines, objects, boxes, size=size)
    corners, polygons = totals
    sizes = outlines.object_sizes[:, objects]  # (2, R)
    firsts = (outlines.object_sizes.cumsum(1) - outlines.object_sizes)[0, objects]  # (R,)
    before = sizes.cumsum(1) - sizes  # (2, R) corners and polygons of the regions before
    region = torch.repeat_interleave(sizes[0], output_size=corners)  # (V,)
    corner = torch.arange(corners, device=region.device) + (firsts - before[0])[region]  # (V,)
    low = boxes[:, :2]  # (R, 2)
    scale = size / (boxes[:, 2:] - low).clamp(min=SMALLEST_SIDE)  # (R, 2)
    both = torch.stack([corner, corner + outlines.following[corner]])  # (2, V)
    ends = (outlines.corners[both] - low[region]) * scale[region]  # (2, V, 2)
    number = outlines.polygon[corner] + before[1, region]  # (V,)
    filling = _Filling(ends, number, polygons, height=size, width=size)
    owner = torch.repeat_interleave(sizes[1], output_size=polygons)  # (Q,)
    return PendingMasks(filling, owner, len(boxes))


class PendingMasks:
    """Masks of R regions that have been begun."""

    def __init__(self, filling: _Filling, owner: Tensor, regions: int) -> None:
        self._filling, self._owner, self._regions = filling, owner, regions

    def read(self) -> Tensor:
        """The union of the polygons of every region: (R, height, width) bool."""
        filled = self._filling.finish()  # (Q, height, width)
        # Counted, because no operation of torch joins booleans by an index.
        union = filled.new_zeros(self._regions, *filled.shape[1:], dtype=torch.int32)
        return union.index_add_(0, self._owner, filled.int()) > 0


class DrawnMasks(NamedTuple):
    """Masks of R regions that need nothing any more."""

    masks: Tensor  # (R, height, width) bool

    def read(self) -> Tensor:
        """The masks."""
        return self.masks


def _has_kernel(boxes: Tensor, size: int) -> bool:
    """Whether a kernel of our own draws masks of this size in such boxes."""
    return boxes.is_cuda and boxes.dtype == torch.float32 and size <= LARGEST and has_triton()


def _drawn_on_gpu(
    outlines: PackedOutlines, objects: Tensor, boxes: Tensor, *, size: int
) -> DrawnMasks:
    from clove_ssl.tasks.labels.polygon_kernel import draw_masks

    masks: Tensor = draw_masks(
        *outlines, objects, boxes, size=size, finer=FINER, smallest_side=SMALLEST_SIDE
    )
    return DrawnMasks(masks)


def fill_polygons(polygons: Sequence[Polygon], *, height: int, width: int) -> Mask:
    """The union of some polygons: (height, width)."""
    outlines = pack_outlines([polygons])
    corner = torch.arange(len(outlines.corners))
    filling = _Filling(
        outlines.corners[torch.stack([corner, corner + outlines.following])],
        outlines.polygon,
        len(polygons),
        height=height,
        width=width,
    )
    union: Mask = filling.finish().any(dim=0).numpy()
    return union


def draw_mask(mask: Polygons | RLE | None, *, height: int, width: int) -> Mask:
    """The mask of an annotation, whatever it is written as: (height, width)."""
    if isinstance(mask, RLE):
        return decode_mask(mask)
    return fill_polygons([np.array(outline) for outline in mask or ()], height=height, width=width)


class _Filling:
    """Polygons that are filled as soon as the number of their crossings is there."""

    def __init__(
        self,
        ends: Tensor,  # (2, V, 2)
        polygon: Tensor,  # (V,) of each edge
        polygons: int,
        *,
        height: int,
        width: int,
    ) -> None:
        self._edges = _trace(ends, width=width)
        self._polygon, self._polygons = polygon, polygons
        self._height, self._width = height, width
        # The one number that decides about sizes: asked for now, read when the masks are needed.
        self._crossings = HostCopy(self._edges.columns.sum()[None])

    def finish(self) -> Tensor:
        """Switch between outside and inside at every crossing, down the columns: (Q, h, w) bool."""
        edges, height, width = self._edges, self._height, self._width
        (crossings,) = self._crossings.read()
        edge = torch.repeat_interleave(edges.columns, output_size=crossings)  # (E,)
        before = edges.columns.cumsum(0) - edges.columns  # (V,)
        column = torch.arange(crossings, device=edge.device) + (edges.first_column - before)[edge]
        row = (_heights(edges, edge, column) + 0.5) / FINER - 0.5
        # A switch below the last row begins the next column, hence one place more than pixels.
        places = height * width + 1
        switch = self._polygon[edge] * places + column * height + row.clamp(0, height).ceil().long()
        count = torch.zeros(self._polygons * places, dtype=torch.int32, device=edge.device)
        count.index_add_(0, switch, torch.ones_like(switch, dtype=torch.int32))
        switches = count.view(self._polygons, places)[:, :-1]
        # Even and odd: an outline that crosses itself leaves holes, as with the COCO tools. One
        # running sum goes through all columns, since a closed outline leaves each as often as it
        # enters.
        inside = switches.cumsum(dim=1, dtype=torch.int32) % 2 == 1
        return inside.view(self._polygons, width, height).mT


def _trace(ends: Tensor, *, width: int) -> _Edges:
    """Edges between ``ends`` (2, V, 2) in pixels."""
    # Cut towards 0 and not down, as a conversion to int in C does: corners left of the image
    # differ.
    ends = (FINER * ends + 0.5).trunc()  # (2, V, 2) whole numbers
    low, high = ends[..., 0].aminmax(dim=0)  # (V,)
    # The centre of column c lies between the places 5c + 2 and 5c + 3.
    first = ((low - 2) / FINER).ceil().clamp(min=0)
    last = ((high - 3) / FINER).floor().clamp(max=width - 1)
    extent = (ends[1] - ends[0]).abs()  # (V, 2)
    steep = extent[:, 0] < extent[:, 1]  # (V,)
    # Along and across the longer axis of each edge instead of x and y.
    ends = torch.where(steep[:, None], ends.flip(2), ends)
    # Drawn from the lower end, so that rounding does not depend on the direction.
    backwards = (ends[0, :, 0] > ends[1, :, 0])[:, None]  # (V, 1)
    start, end = torch.where(backwards, ends.flip(0), ends)  # (V, 2)
    length, rise = (end - start).unbind(1)  # (V,)
    return _Edges(
        first_column=first.long(),
        columns=(last - first + 1).clamp(min=0).long(),
        steep=steep,
        along=start[:, 0],
        across=start[:, 1],
        # A corner twice in a row is an edge without length, which passes no column.
        slope=rise / length.clamp(min=1),
    )


def _heights(edges: _Edges, edge: Tensor, column: Tensor) -> Tensor:
    """The lower y, on the finer grid, of the two points around the centre of a column: (E,)."""
    steep, along, across, slope = (
        each[edge] for each in (edges.steep, edges.along, edges.across, edges.slope)
    )  # (E,)
    place = (FINER * column + 2).to(along.dtype)  # (E,) x of the left point
    # Flat edges have one point per x. Steep ones have one per y: here the last point before x
    # passes the centre of the column. A division may miss by one step, so the neighbours are
    # looked at with the exact rule.
    flat = place - along
    guess = ((place + 0.5 - across) / slope).floor()
    steps = torch.stack([flat, flat + 1, guess, guess + 1])  # (4, E), as one operation takes them
    reached = (across + slope * steps + 0.5).trunc()  # (4, E) on the shorter axis
    passed = ((reached[2:] > place) == (slope > 0)).sum(dim=0)  # (E,)
    return torch.where(steep, along + (guess + 1 - passed), reached[:2].amin(dim=0))
