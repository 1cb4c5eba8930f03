"""One resize and one mirroring, applied to an image and to everything drawn in it.

Coordinates are pixels with edges on whole numbers, so a mirrored point is ``width - x``. The two
axes have the factors of the rounded sizes. Masks of runs take the nearest pixel by Pillow's
rule, because a mask has no half-covered ones.

Dimensions: N objects, P keypoints, H x W pixels before, h x w after.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.tasks.rcnn.pixels import Pixels, resize_image

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Placement:
    """Where the pixels of an image went."""

    old: tuple[int, int]  # H, W
    new: tuple[int, int]  # h, w
    mirrored: bool = False

    def image(self, pixels: Pixels) -> Tensor:
        """(H, W, 3) -> (3, h, w), channels last in memory."""
        resized = resize_image(pixels, self.new)
        image = torch.from_numpy(resized if resized.flags.writeable else resized.copy())
        return (image.flip(1) if self.mirrored else image).permute(2, 0, 1)

    def points(self, places: Floats) -> Floats:
        """x, y of any number of points: (..., 2) -> (..., 2)."""
        # In Detectron2's order, one factor per axis and then a product: boxes agree to the last
        # bit, which decides ties between anchors.
        moved = places * (self.new[1] / self.old[1], self.new[0] / self.old[0])
        if self.mirrored:
            moved[..., 0] = self.new[1] - moved[..., 0]
        return moved

    def boxes(self, boxes: Floats) -> Floats:
        """(N, 4) -> (N, 4), cut to the image."""
        corners = self.points(boxes.reshape(-1, 2, 2))  # (N, 2 corners, 2)
        height, width = self.new
        # A mirrored box has its corners exchanged.
        cut = np.clip(np.sort(corners, axis=1), 0, (width, height))
        return cut.reshape(-1, 4)

    def polygon(self, outline: Floats) -> Floats:
        """x, y, x, y, ...: (2k,) -> (2k,); corners may lie outside the image."""
        return self.points(outline.reshape(-1, 2)).reshape(-1)

    def mask(self, mask: Bits) -> Bits:
        """(H, W) -> (h, w)."""
        height, width = self.new
        picture = Image.fromarray(mask.view(np.uint8))
        bits = np.asarray(picture.resize((width, height), Image.Resampling.NEAREST)).view(np.bool_)
        return bits[:, ::-1] if self.mirrored else bits

    def keypoints(self, points: Floats, mirror_order: npt.NDArray[np.int64]) -> Floats:
        """x, y, v (N, P, 3); mirroring also exchanges left and right.

        A point outside the image counts as not labelled, and such points lie at 0, 0.
        """
        height, width = self.new
        places = self.points(points[..., :2])
        inside = ((places >= 0) & (places <= (width, height))).all(-1)  # (N, P)
        visible = np.where(inside, points[..., 2], 0.0)
        moved = np.concatenate([places, visible[..., None]], axis=-1)
        moved[visible == 0] = 0
        # A left hand in a mirror is a right one; without this a detector would learn to confuse
        # them.
        return moved[:, mirror_order] if self.mirrored else moved


def mirror_order(names: tuple[str, ...]) -> tuple[int, ...]:
    """For every keypoint the one that takes its place in a mirrored image.

    Names tell: ``left_`` and ``right_`` change places, all others stay.
    """
    order = []
    for name in names:
        partner = _partner(name)
        if partner not in names:
            raise UserError(
                f"Keypoint {name!r} has no partner {partner!r}, so images cannot be mirrored. "
                "Name keypoints of both sides left_... and right_..., or switch mirroring off."
            )
        order.append(names.index(partner))
    return tuple(order)


def _partner(name: str) -> str:
    for side, other in (("left", "right"), ("right", "left")):
        if name.lower().startswith(side):
            return (other.title() if name[0].isupper() else other) + name[len(side) :]
    return name
