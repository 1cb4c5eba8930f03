"""Non-maximum suppression of many groups of boxes at once.

torchvision suppresses one group per call, and the host waits for each: with 16 images
of five levels that is a third of the time of a small detector. On a GPU a kernel of
our own takes all groups together; elsewhere torchvision's takes turns.

Dimensions: B images, P boxes of an image, level by level, best first in each level.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor
from torchvision.ops import nms


def survivors(boxes: Tensor, level_sizes: Sequence[int], overlap: float) -> Tensor:
    """Which of ``boxes`` (B, P, 4) no better one of their level covers by more than ``overlap``.

    Returns:
        (B, P) bool.
    """
    if boxes.is_cuda and find_spec("triton") is not None:
        from clove_ssl.tasks.rcnn.proposals.suppression_kernel import survivors_on_gpu

        return survivors_on_gpu(boxes, level_sizes, overlap)
    kept = torch.zeros(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for image, marks in zip(boxes, kept, strict=True):
        levels = zip(image.split(list(level_sizes)), marks.split(list(level_sizes)), strict=True)
        for level, level_marks in levels:
            order = torch.arange(len(level), 0, -1, device=level.device)
            level_marks[nms(level, order.to(level.dtype), overlap)] = True
    return kept
