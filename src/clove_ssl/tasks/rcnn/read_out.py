"""From the pixels a detector sees to the pixels of the original image.

Dimensions: D detections, M x M pixels of a mask, P keypoints, H x W pixels of the original image.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clove_ssl.layers.transfers import send_like
from clove_ssl.tasks.rcnn.boxes import clip_boxes, has_area
from clove_ssl.tasks.rcnn.instances import ImageDetections
from clove_ssl.tasks.rcnn.pixels import resize_boxes
from clove_ssl.tasks.rcnn.regions.masks import paste_masks


class Found(NamedTuple):
    """What was found in one image, in the pixels that the detector sees, best first."""

    boxes: Tensor  # (D, 4)
    scores: Tensor  # (D,)
    classes: Tensor  # (D,)
    masks: Tensor | None = None  # (D, M, M) probabilities in the box
    keypoints: Tensor | None = None  # (D, P, 3) x, y, score


def in_original_pixels(
    found: Found, *, seen: tuple[int, int], original: tuple[int, int]
) -> ImageDetections:
    """Scale to the original ``(height, width)``, clip there, and drop what has no area left."""
    boxes = clip_boxes(resize_boxes(found.boxes, seen, original), original)  # (D, 4)
    kept = torch.nonzero(has_area(boxes)).squeeze(1)  # what is left of D
    return ImageDetections(
        boxes=boxes[kept],
        scores=found.scores[kept],
        classes=found.classes[kept],
        masks=None
        if found.masks is None
        else paste_masks(found.masks[kept], boxes[kept], image_size=original),
        keypoints=None
        if found.keypoints is None
        else _scaled(found.keypoints[kept], seen=seen, original=original),
    )


def _scaled(keypoints: Tensor, *, seen: tuple[int, int], original: tuple[int, int]) -> Tensor:
    """Keypoints (D, P, 3) with x and y in the original image; scores stay."""
    return keypoints * send_like([original[1] / seen[1], original[0] / seen[0], 1.0], keypoints)
