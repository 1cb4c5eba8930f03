"""What lies behind the objects, and what the camera does to the whole image.

Dimensions: an image is (3, H, W) with H = W = size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.scenes.canvas import draw_colours, stain
from clove_ssl.data.scenes.numbers import Draws, Field, clamp, heading, wave
from clove_ssl.data.scenes.textures import noise_window


@lru_cache(maxsize=8)
def _ruler(size: int) -> Field:
    """Pixel middles between -1 and 1."""
    middles: Field = np.arange(size, dtype=np.float32) * 2
    middles += 1 - size
    middles /= size
    middles.flags.writeable = False  # shared by all scenes of this size
    return middles


@lru_cache(maxsize=8)
def _off_centre(size: int) -> Field:
    """Squared distance from the middle of the image, 1 at the corners."""
    squares = _ruler(size) * _ruler(size) * 0.5
    squares = squares[:, None] + squares
    squares.flags.writeable = False
    return squares


def outdoors(size: int, draws: Draws) -> Field:
    """Sky that fades into haze above rough ground."""
    horizon = int(size * draws.uniform(0.3, 0.75))
    sky = noise_window(size, draws)[:horizon] * draws.uniform(0, 0.6)
    sky = sky + (_ruler(size)[:horizon, None] * draws.uniform(-0.5, 0.5) + 0.4)
    ground = noise_window(size, draws)[horizon:] * draws.uniform(0.2, 1.0)
    nearness = _ruler(size)[horizon:, None] * draws.uniform(-0.4, 0.4)
    planes = np.empty((3, size, size), np.float32)
    planes[:, :horizon] = stain(sky, *draw_colours(draws))
    planes[:, horizon:] = stain(ground + nearness, *draw_colours(draws))
    return planes


def wall(size: int, draws: Draws) -> Field:
    """Stripes or tiles on a more or less stained wall."""
    cosine, sine = heading(draws.unit())
    frequency = draws.uniform(1.5, 8)
    across, down = _ruler(size) * frequency, _ruler(size)[:, None] * frequency
    pattern = wave(across * cosine + down * sine)
    if draws.chance(0.4):
        pattern *= wave(down * cosine - across * sine)
    pattern *= draws.uniform(0.1, 0.6)
    pattern += noise_window(size, draws) * draws.uniform(0, 0.8)
    return stain(pattern, *draw_colours(draws))


def clouds(size: int, draws: Draws) -> Field:
    """Noise of one scale, tinted by noise of another."""
    planes = stain(noise_window(size, draws) * draws.uniform(0.5, 1.6), *draw_colours(draws))
    tint = noise_window(size, draws) * draws.uniform(0.2, 0.7)
    planes *= 1.2 - tint
    return planes


def gradient(size: int, draws: Draws) -> Field:
    """A smooth change of colour in some direction."""
    cosine, sine = heading(draws.unit())
    ramp = _ruler(size) * (cosine * 0.5) + _ruler(size)[:, None] * (sine * 0.5)
    ramp += 0.5
    ramp += noise_window(size, draws) * draws.uniform(0, 0.3)
    return stain(ramp, *draw_colours(draws))


_BACKGROUNDS: tuple[Callable[[int, Draws], Field], ...] = (outdoors, wall, clouds, gradient)


def paint_background(size: int, draws: Draws) -> Field:
    """A background of any kind, often with blotches: (3, H, W)."""
    planes = draws.choice(_BACKGROUNDS)(size, draws)
    for _ in range(draws.integer(0, 2)):
        _add_blotches(planes, draws)
    return planes


def _add_blotches(planes: Field, draws: Draws) -> None:
    blotches = noise_window(planes.shape[-1], draws) - draws.uniform(0.45, 0.65)
    blotches *= draws.uniform(4, 20)
    clamp(blotches)
    for plane in planes:
        plane += blotches * draws.uniform(-90, 90)


def develop(pixels: Field, draws: Draws) -> NDArray[np.uint8]:
    """Light the whole image unevenly, fade and tint it: (3, H, W) to uint8 (H, W, 3)."""
    size = pixels.shape[-1]
    cosine, sine = heading(draws.unit())
    slope, vignette = draws.uniform(0, 0.25), draws.uniform(0, 0.45)
    exposure = draws.uniform(0.75, 1.3)
    light = _off_centre(size) * (-vignette * exposure)
    ramp = _ruler(size) * (slope * cosine * exposure)
    light += ramp + (_ruler(size)[:, None] * (slope * sine * exposure) + exposure)
    pixels *= light
    _fade(pixels, draws.uniform(0, 0.9))
    for plane in pixels:
        plane *= draws.uniform(0.8, 1.15)  # colour of the light
    clamp(pixels, 0, 255)
    return np.ascontiguousarray(pixels.astype(np.uint8).transpose(1, 2, 0))


def _fade(pixels: Field, share: float) -> None:
    """Mix colours with grey, in place."""
    grey = pixels[0] + pixels[1]
    grey += pixels[2]
    grey *= share / 3
    pixels *= 1 - share
    pixels += grey
