"""Windows slid over one view, and where the same pieces of the image lie in another.

Boxes of views are signed boxes of ``views/geometry.py``; windows and their
counterparts are x0, y0, x1, y1 in pixels of a view as the network sees it, with
x0 < x1 and y0 < y1 also where a view is mirrored.

Dimensions: B images, N windows in row-major order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NOWHERE = (0.0, 0.0, 1.0, 1.0)  # stands for a window that is not inside; never empty, never far


class Counterparts(NamedTuple):
    """Where the windows of one view lie in another."""

    boxes: Tensor  # (B, N, 4) float64
    inside: Tensor  # (B, N) bool, the whole window is in the other view


def sliding_windows(
    size: int, window: int, stride: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Square windows over a view of ``size`` pixels: (N, 4) float64.

    As in the released code of ReSim, a window that would end exactly at the
    right or lower edge is left out.
    """
    # The end is left out by arange, and with it the last window that would fit.
    starts = torch.arange(0, size - window, stride, dtype=torch.float64, device=device)
    y, x = torch.meshgrid(starts, starts, indexing="ij")
    corners = torch.stack([x, y], dim=-1).flatten(0, 1)  # (N, 2)
    return torch.cat([corners, corners + window], dim=1)


def find_windows(windows: Tensor, here: Tensor, there: Tensor, *, size: int) -> Counterparts:
    """Map windows (N, 4) of the views ``here`` (B, 4) through the image into ``there`` (B, 4).

    A counterpart is inside when it begins at pixel 0 or later and ends before
    ``size``. The arithmetic is in float64: windows on the edge must not depend
    on rounding.
    """
    mapped = _map_corners(windows[None], here.double(), there.double(), size)  # (B, N, 4)
    first, last = mapped[..., :2], mapped[..., 2:]  # (B, N, 2) each; swapped when mirrored
    boxes = torch.cat([torch.minimum(first, last), torch.maximum(first, last)], dim=-1)
    inside = (boxes[..., :2] >= 0).all(-1) & (boxes[..., 2:] < size).all(-1)
    return Counterparts(_where_inside(boxes, inside), inside)


def _map_corners(windows: Tensor, here: Tensor, there: Tensor, size: int) -> Tensor:
    start, pixel = _start_and_pixel(here, size)
    other_start, other_pixel = _start_and_pixel(there, size)
    # Steps are negative in a mirrored view, so windows turn around by themselves.
    return (windows * pixel + start - other_start) / other_pixel


def _start_and_pixel(boxes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """First edge of a view in the image and the step of one pixel, (B, 1, 4) each as x, y, x, y."""
    start, extent = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]  # (B, 2); negative when mirrored
    return start.repeat(1, 2)[:, None], extent.repeat(1, 2)[:, None] / size


def _where_inside(boxes: Tensor, inside: Tensor) -> Tensor:
    """Put ``NOWHERE`` in the place of boxes that are not inside."""
    x0, y0, x1, y1 = (
        torch.where(inside, edge, dummy)
        for edge, dummy in zip(boxes.unbind(-1), NOWHERE, strict=True)
    )
    return torch.stack([x0, y0, x1, y1], dim=-1)
