"""Colour operations on one view, as the released Pillow pipeline defines them.

Pixels are float32, (3, h, w), 0 to 255. Every operation ends inside that range
and none of them rounds. Functions whose name ends in an underscore overwrite
their argument and return the result, which may be another tensor; ``luma`` and
the others leave it alone.

A factor of 1 (a hue of 0) changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WHITE = 255.0
LUMA_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R 601-2: how bright red, green and blue look


def luma(pixels: Tensor) -> Tensor:
    """Brightness as the eye sees it, (1, h, w)."""
    red, green, blue = pixels[:1], pixels[1:2], pixels[2:]  # (1, h, w) each
    grey = red * LUMA_WEIGHTS[0]
    return grey.add_(green, alpha=LUMA_WEIGHTS[1]).add_(blue, alpha=LUMA_WEIGHTS[2])


def adjust_brightness_(pixels: Tensor, factor: float) -> Tensor:
    """Blend with black."""
    return _clamped_if_stretched_(pixels.mul_(factor), factor)


def adjust_contrast_(pixels: Tensor, factor: float) -> Tensor:
    """Blend with the mean brightness of the view."""
    red, green, blue = pixels.mean(dim=(1, 2)).tolist()
    mean = LUMA_WEIGHTS[0] * red + LUMA_WEIGHTS[1] * green + LUMA_WEIGHTS[2] * blue
    return _clamped_if_stretched_(pixels.mul_(factor).add_(mean * (1 - factor)), factor)


def adjust_saturation_(pixels: Tensor, factor: float) -> Tensor:
    """Blend with the grey version of the view."""
    return _clamped_if_stretched_(pixels.lerp_(luma(pixels), 1 - factor), factor)


def adjust_hue_(pixels: Tensor, turns: float) -> Tensor:
    """Turn the colour circle, keeping saturation and value of the HSV model.

    Turning by a third exchanges the channels. The rest, at most a sixth, needs no
    detour over HSV: a channel falls as the colour turns away from its own hue and
    rises as it comes nearer, at the speed of the colour's chroma, and it rests at
    the colour's highest or lowest value while the median channel is the one that
    moves. ``2 * channel - median`` continues the ramps of a channel through these
    rests, so shifting that and cutting it off at both values is the whole operation.
    """
    thirds = round(3 * turns)
    if thirds % 3:
        pixels = pixels.roll(thirds, dims=0)
    sixths = 6 * turns - 2 * thirds  # in [-1, 1]
    red, green, blue = pixels  # (h, w) each
    larger, smaller = torch.maximum(red, green), torch.minimum(red, green)
    high, low = torch.maximum(larger, blue), torch.minimum(smaller, blue)
    median = torch.maximum(smaller, torch.minimum(larger, blue))
    side = torch.empty_like(pixels)  # (3, h, w): which way the colour has left the channel's hue
    torch.sub(green, blue, out=side[0])
    torch.sub(blue, red, out=side[1])
    torch.sub(red, green, out=side[2])
    pixels.lerp_(median, -1)  # 2 * pixels - median
    return pixels.addcmul_(side.sign_(), high - low, value=-sixths).clamp_(low, high)


def solarize_(pixels: Tensor, threshold: int) -> Tensor:
    """Invert the pixels that are ``threshold`` or brighter once rounded."""
    inverted = (pixels >= threshold - 0.5).to(pixels.dtype)  # 1 or 0
    # Arithmetic instead of a choice: torch.where is many times slower on a CPU.
    return pixels.sub_(inverted.mul_(pixels.mul(2).sub_(WHITE)))


JITTER: tuple[Callable[[Tensor, float], Tensor], ...] = (
    adjust_brightness_,
    adjust_contrast_,
    adjust_saturation_,
    adjust_hue_,
)  # in the order of ``ViewParameters.factors``


def _clamped_if_stretched_(pixels: Tensor, factor: float) -> Tensor:
    """A blend with a factor up to 1 lies between its two ends and cannot leave the range."""
    return pixels.clamp_(0, WHITE) if factor > 1 else pixels
