"""Images of any size to the sizes that detectors are trained and tested with.

The shorter side gets a given length, unless the longer one would exceed its limit. Pixels are
resized by Pillow, bilinear with antialiasing, while they are still uint8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from clove_ssl.modules.transfers import send_like

Pixels = npt.NDArray[np.uint8]  # (H, W, 3), or (H, W) for grey


def resized_shape(height: int, width: int, *, short_side: int, longest: int) -> tuple[int, int]:
    """The ``(height, width)`` an image is resized to.

    The limit of the longer side applies to the exact sizes; halves are rounded up at the end. A
    strip that would become thinner than a pixel keeps one.
    """
    if min(height, width) < 1:
        raise ValueError(f"an image of {height} x {width} pixels cannot be resized")
    scale = short_side / min(height, width)
    if height < width:
        new_height, new_width = float(short_side), scale * width
    else:
        new_height, new_width = scale * height, float(short_side)
    if max(new_height, new_width) > longest:
        limit = longest / max(new_height, new_width)
        new_height, new_width = new_height * limit, new_width * limit
    return max(1, int(new_height + 0.5)), max(1, int(new_width + 0.5))


def resize_image(image: Pixels, shape: tuple[int, int]) -> Pixels:
    """Resize an image to ``(height, width)``."""
    height, width = shape
    if image.shape[:2] == shape:
        return image
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized)


def resize_boxes(boxes: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Move boxes (N, 4) from an image of ``(height, width)`` to its resized version.

    The factors are those of the rounded sizes, so the two axes may differ a little.
    """
    scale = [new[1] / old[1], new[0] / old[0]] * 2
    return boxes * send_like(scale, boxes)


def draw_short_side(choices: Sequence[int], generator: torch.Generator) -> int:
    """One of the training sizes, all equally likely."""
    position = torch.randint(len(choices), (), generator=generator, device=generator.device)
    return choices[int(position)]
