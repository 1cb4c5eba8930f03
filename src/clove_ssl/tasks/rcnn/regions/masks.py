"""Masks of regions: loss, probabilities, and pasting them into the image.

A mask head predicts an M x M map for a region and its class; targets come from ``polygons``.

Dimensions: R regions, M x M pixels of a mask, H x W pixels of the image.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from clove_ssl.tasks.rcnn.boxes import has_area

_PIXELS_TOGETHER = 1 << 25  # of masks that a GPU pastes at once


def mask_loss(
    logits: Tensor,  # (R, M, M) of the foreground regions and their true classes
    targets: Tensor,  # (R, M, M) bool
    *,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Binary cross entropy, the mean over all pixels.

    The mean is over R regions, or over ``normalizer`` of them. Without regions the loss is 0,
    with a gradient.
    """
    # Only the map of the true class learns, so classes do not compete for pixels.
    total = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="sum")
    regions = max(len(logits), 1) if normalizer is None else normalizer
    return total / (regions * logits.shape[1] * logits.shape[2])


@torch.no_grad()
def paste_masks(
    probabilities: Tensor,  # (R, M, M)
    boxes: Tensor,  # (R, 4)
    *,
    image_size: tuple[int, int],
    threshold: float = 0.5,
) -> Tensor:
    """Binary masks of the whole image: (R, H, W) bool.

    A pixel belongs to a mask if the probability at its centre reaches ``threshold``. The box is
    used as it is, without a border around it.
    """
    if boxes.is_cuda:
        return _paste_together(probabilities, boxes, image_size=image_size, threshold=threshold)
    pasted = torch.zeros(len(boxes), *image_size, dtype=torch.bool, device=boxes.device)
    for canvas, mask, box, corners in zip(
        pasted, probabilities, boxes, boxes.tolist(), strict=True
    ):
        rows, columns = _pixels_of(corners, image_size)
        canvas[rows, columns] = _resample(mask, box, rows, columns) >= threshold
    return pasted


def _paste_together(
    probabilities: Tensor,  # (R, M, M)
    boxes: Tensor,  # (R, 4)
    *,
    image_size: tuple[int, int],
    threshold: float,
) -> Tensor:
    """Masks of the whole image without a look at the boxes, some at a time: (R, H, W) bool.

    A GPU rather computes all pixels than wait for the host, box by box.
    """
    height, width = image_size
    some = max(_PIXELS_TOGETHER // (height * width), 1)
    parts = [
        _whole_image(*part, image_size=image_size) >= threshold
        for part in zip(torch.split(probabilities, some), torch.split(boxes, some), strict=True)
    ]
    # A box without an area divides by 0 above, and nothing that comes of that may be a mask.
    return torch.cat(parts) & has_area(boxes)[:, None, None]


def _whole_image(mask: Tensor, boxes: Tensor, *, image_size: tuple[int, int]) -> Tensor:
    """Bilinear values of masks (R, M, M) at all pixels of the image: (R, H, W)."""
    height, width = image_size
    x1, y1, x2, y2 = boxes[..., None].unbind(1)  # (R, 1)
    x, y = _places(slice(0, width), x1, x2), _places(slice(0, height), y1, y2)  # (R, W), (R, H)
    shape = (len(boxes), height, width)
    places = [x[:, None].expand(shape), y[:, :, None].expand(shape)]
    grid = torch.stack(places, dim=-1).to(mask.dtype)  # (R, H, W, 2)
    return F.grid_sample(mask[:, None], grid, align_corners=False)[:, 0]


def _pixels_of(corners: list[float], image_size: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns of the image that a box touches, and one more on every side."""
    height, width = image_size
    x1, y1, x2, y2 = corners
    if not (x2 > x1 and y2 > y1):
        return slice(0, 0), slice(0, 0)
    return _touched(y1, y2, height), _touched(x1, x2, width)


def _touched(low: float, high: float, length: int) -> slice:
    start = min(max(math.floor(low) - 1, 0), length)
    return slice(start, max(min(math.ceil(high) + 1, length), start))


def _resample(mask: Tensor, box: Tensor, rows: slice, columns: slice) -> Tensor:
    """Bilinear values of a mask (M, M) at the centres of some pixels: (rows, columns)."""
    x1, y1, x2, y2 = box.unbind()
    x = _places(columns, x1, x2)  # (columns,)
    y = _places(rows, y1, y2)  # (rows,)
    if len(x) == 0 or len(y) == 0:
        return mask.new_zeros(len(y), len(x))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)  # (rows, columns, 2)
    values = F.grid_sample(mask[None, None], grid[None].to(mask.dtype), align_corners=False)
    return values[0, 0]


def _places(pixels: slice, low: Tensor, high: Tensor) -> Tensor:
    """Pixel centres in units of a side of the box, from -1 to 1: (pixels,)."""
    centers = torch.arange(pixels.start, pixels.stop, device=low.device) + 0.5
    # ``grid_sample`` counts from -1 to 1 across the mask, edges included (no aligned corners).
    return (centers - low) / (high - low) * 2 - 1
