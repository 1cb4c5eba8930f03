"""Random draws and periodic functions that give the same bits on every platform.

Only operations that IEEE 754 rounds exactly are used on the way to a pixel
(+ - * / sqrt floor min max). Sines, powers and sums over pixels are not: their
last bit depends on the processor, and a last bit can move a mask by a pixel.

Angles are measured in turns: 0 to 1 goes once around, from x towards y, which
is clockwise because y points down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]  # one number per pixel of a box, (h, w) unless said otherwise
T = TypeVar("T")

_BLOCK = 512  # more draws than most scenes need, and cheap to make at once


class Draws:
    """A stream of random choices, fixed by its two keys."""

    def __init__(self, seed: int, index: int) -> None:
        if not (0 <= seed < 2**64 and 0 <= index < 2**64):
            raise ValueError(f"seed {seed} and index {index} must lie in 0 .. 2**64 - 1")
        self._generator = np.random.Generator(np.random.Philox(key=(seed << 64) | index))
        self._waiting: list[float] = []

    def unit(self) -> float:
        """A number in [0, 1)."""
        if not self._waiting:
            self._waiting = self._generator.random(_BLOCK).tolist()
        return self._waiting.pop()

    def uniform(self, low: float, high: float) -> float:
        """A number between ``low`` and ``high``."""
        return low + (high - low) * self.unit()

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int(self.unit() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.unit() < probability

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, each as likely as the others."""
        return options[int(self.unit() * len(options))]


def wave(phase: Field) -> Field:
    """A sine made of two parabolas: period 1, between -1 and 1, 0 at 0 and rising."""
    centred = phase - np.floor(phase)
    centred -= 0.5
    height = np.abs(centred)
    height *= 16
    height -= 8
    height *= centred
    return height


def heading(turn: float) -> tuple[float, float]:
    """Unit vector (cos, sin) that points ``turn`` turns away from the x axis.

    The angle is off by up to 3 degrees in between the multiples of an eighth.
    """
    cosine, sine = _parabola(turn + 0.25), _parabola(turn)
    length = math.sqrt(cosine * cosine + sine * sine)
    return cosine / length, sine / length


def _parabola(phase: float) -> float:
    centred = phase - math.floor(phase) - 0.5
    return centred * (abs(centred) * 16 - 8)


def turns(x: Field, y: Field) -> Field:
    """Angle of the points (x, y) in turns, between -0.5 and 0.5, to a thousandth."""
    wide, tall = np.abs(x), np.abs(y)
    steep = tall > wide
    slope = np.minimum(wide, tall)
    np.maximum(wide, tall, out=wide)
    wide += 1e-12
    slope /= wide
    angle = slope * -0.0434
    angle += 0.1684
    angle *= slope  # within 0 .. 1/8
    np.subtract(0.25, angle, out=angle, where=steep)
    np.subtract(0.5, angle, out=angle, where=x < 0)
    return np.copysign(angle, y, out=angle)


def radii(x: Field, y: Field) -> Field:
    """Distance of the points (x, y) from the origin."""
    squares: Field = x * x
    squares += y * y
    np.sqrt(squares, out=squares)
    return squares


def clamp(field: Field, low: float = 0.0, high: float = 1.0) -> Field:
    """Limit ``field`` in place; several times faster than np.clip on small boxes."""
    np.maximum(field, low, out=field)
    return np.minimum(field, high, out=field)
