"""From the maps of a region to the part, U and V of every pixel of a box.

The result is what scores are made from: 8 bits per value, part 0 where no person is, U and V in
steps of 1/255. Its pixels are those of the box, whose sides are cut to whole numbers.

Dimensions: D detections, M x M pixels of a region's maps, h x w pixels of a box.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.tasks.densepose.branch import SurfaceMaps
from clove_ssl.tasks.rcnn.instances import ImageDetections

LEVELS = 255
"""Steps of U and V."""


@dataclass(frozen=True)
class DensePoseDetections(ImageDetections):
    """Persons of one image; the best of them with their surface."""

    surfaces: tuple[Tensor, ...] = ()  # of the first detections: (3, h, w) uint8 part, U, V


@torch.no_grad()
def read_surfaces(maps: SurfaceMaps, boxes: Tensor) -> Iterator[Tensor]:
    """Part, U and V in the pixels of boxes (D, 4), one after the other: (3, h, w) uint8."""
    # In float64, as records have them: a side must be cut to the same whole number there.
    corners = boxes.double()
    sides = (corners[:, 2:] - corners[:, :2]).long().clamp(min=1).tolist()  # D x (w, h)
    for number, (width, height) in enumerate(sides):
        own = SurfaceMaps(*(each[number : number + 1] for each in maps))
        yield _read_surface(own, (height, width))


def _read_surface(maps: SurfaceMaps, size: tuple[int, int]) -> Tensor:
    """Maps (1, C, M, M) of one region, enlarged to a box."""
    person = _resized(maps.person, size).argmax(dim=0)  # (h, w)
    part = _resized(maps.part, size).argmax(dim=0) * (person > 0)  # (h, w)
    on_body = (part > 0).float()
    rows = [part.to(torch.uint8)]
    for values in (maps.u, maps.v):
        own = _resized(values, size).gather(0, part[None])[0]  # (h, w)
        # Detectron2 cuts to whole steps rather than rounding to them.
        rows.append((own * LEVELS * on_body).clamp(0, LEVELS).to(torch.uint8))
    return torch.stack(rows)


def _resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(1, C, M, M) -> (C, h, w)."""
    return F.interpolate(maps, size, mode="bilinear", align_corners=False)[0]
