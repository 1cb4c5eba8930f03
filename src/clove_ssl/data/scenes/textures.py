"""Textures: one family of patterns per class, each with random parameters.

A texture says per pixel how much of the second of an object's two colours is
mixed into the first, from 0 to 1. Patterns live in the object's frame: they
turn and scale with it, but never get finer than the image can show.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from clove_ssl.data.scenes.numbers import Draws, Field, clamp, heading, radii, turns, wave
from clove_ssl.data.scenes.shapes import Patch

Texture = Callable[[Patch, Draws], Field]

NOISE_SIDE = 512
_PIXELS_PER_PERIOD = 4.0


@cache
def noise() -> Field:
    """Cloudy noise between 0 and 1 that tiles the plane, (NOISE_SIDE, NOISE_SIDE)."""
    total = np.zeros((NOISE_SIDE, NOISE_SIDE), np.float32)
    for octave, cells in enumerate((16, 32, 64, 128, 256)):
        total += _smooth_lattice(cells, octave) * 0.5**octave
    total -= total.min()
    total /= total.max()
    total.flags.writeable = False  # every scene looks at the same noise
    return total


def _smooth_lattice(cells: int, octave: int) -> Field:
    """Random values at lattice points, blended smoothly in between."""
    generator = np.random.Generator(np.random.Philox(key=octave))
    values = generator.random((cells, cells)).astype(np.float32)
    place = np.arange(NOISE_SIDE, dtype=np.float32) * (cells / NOISE_SIDE)
    left = place.astype(np.intp)
    right = (left + 1) % cells
    blend = place - np.floor(place)
    blend = blend * blend * (3 - 2 * blend)
    columns = values[:, left] * (1 - blend) + values[:, right] * blend
    rows: Field = columns[left] * (1 - blend[:, None]) + columns[right] * blend[:, None]
    return rows


def noise_window(size: int, draws: Draws) -> Field:
    """A square of noise from a random place, at one of three scales; not to be written to."""
    step = draws.integer(1, min(3, max(1, NOISE_SIDE // size)))
    span = size * step
    row, column = (draws.integer(0, max(0, NOISE_SIDE - span)) for _ in range(2))
    if span > NOISE_SIDE:
        repeats = -(-span // NOISE_SIDE)
        return np.tile(noise(), (repeats, repeats))[:span, :span]
    return noise()[row : row + span : step, column : column + span : step]


def _noise_at(x: Field, y: Field, draws: Draws) -> Field:
    """Noise at any points, given in cells of the noise image."""
    row = (y + draws.uniform(NOISE_SIDE, 2 * NOISE_SIDE)).astype(np.int32)
    column = (x + draws.uniform(NOISE_SIDE, 2 * NOISE_SIDE)).astype(np.int32)
    row &= NOISE_SIDE - 1
    column &= NOISE_SIDE - 1
    row *= NOISE_SIDE
    row += column
    return noise().ravel().take(row)


def _frequency(patch: Patch, draws: Draws, low: float, high: float) -> float:
    """Periods per unit of length, few enough for every period to have its pixels."""
    return min(draws.uniform(low, high), patch.radius / _PIXELS_PER_PERIOD)


def _edges(pattern: Field, draws: Draws) -> Field:
    """Turn a pattern between -1 and 1 into a mix, with hard or soft borders."""
    pattern *= draws.uniform(0.5, 2.5)
    pattern += 0.5
    return clamp(pattern)


def rings(patch: Patch, draws: Draws) -> Field:
    """Concentric circles."""
    phase = radii(patch.x, patch.y)
    phase *= _frequency(patch, draws, 2.0, 4.0)
    phase += draws.unit()
    return _edges(wave(phase), draws)


def stripes(patch: Patch, draws: Draws) -> Field:
    """Straight parallel bands."""
    frequency = _frequency(patch, draws, 2.0, 5.0)
    cosine, sine = heading(draws.choice((0.0, 0.125, 0.25, 0.375)))
    phase = patch.x * (cosine * frequency) + patch.y * (sine * frequency)
    phase += draws.unit()
    return _edges(wave(phase), draws)


def spots(patch: Patch, draws: Draws) -> Field:
    """Round spots in staggered rows."""
    frequency = _frequency(patch, draws, 2.2, 4.0)
    down = patch.y * frequency
    row = np.floor(down)
    across = patch.x * frequency
    row *= 0.5
    across += row
    across -= np.floor(across)
    across -= 0.5
    down -= np.floor(down)
    down -= 0.5
    closeness = radii(across, down)
    np.subtract(draws.uniform(0.26, 0.36), closeness, out=closeness)
    closeness *= 4
    return _edges(closeness, draws)


def segments(patch: Patch, draws: Draws) -> Field:
    """Bands across a ring, like those of a life belt."""
    phase = turns(patch.x, patch.y)
    phase *= min(draws.integer(4, 10), int(patch.radius * 0.8) + 1)
    phase += draws.unit()
    return _edges(wave(phase), draws)


def checks(patch: Patch, draws: Draws) -> Field:
    """A chessboard."""
    frequency = _frequency(patch, draws, 1.5, 3.0)
    pattern = wave(patch.x * frequency + draws.unit())
    pattern *= wave(patch.y * frequency + draws.unit())
    pattern *= 2
    return _edges(pattern, draws)


def bricks(patch: Patch, draws: Draws) -> Field:
    """Courses of bricks with thin joints."""
    frequency = _frequency(patch, draws, 2.5, 4.5)
    down = patch.y * frequency
    course = np.floor(down)
    down -= course
    course *= 0.5
    across = patch.x * (frequency * 0.5)
    across += course
    across -= np.floor(across)
    across *= 2
    joint = np.minimum(across, down, out=across)
    np.subtract(draws.uniform(0.22, 0.32), joint, out=joint)
    joint *= 4
    return _edges(joint, draws)


def veins(patch: Patch, draws: Draws) -> Field:
    """A midrib along x with side veins that leave it at a slant."""
    off_rib = np.abs(patch.y)
    phase = np.multiply(off_rib, draws.uniform(0.8, 1.6), dtype=np.float32)
    np.subtract(patch.x, phase, out=phase)
    phase *= _frequency(patch, draws, 2.5, 5.0)
    pattern = wave(phase)
    off_rib *= -14
    off_rib += 1.4
    return _edges(np.maximum(pattern, off_rib, out=pattern), draws)


def brushed(patch: Patch, draws: Draws) -> Field:
    """Metal brushed in circles: noise that is long around and short outwards."""
    angle = turns(patch.x, patch.y)
    angle *= draws.uniform(24, 64)
    outwards = radii(patch.x, patch.y)
    outwards *= min(draws.uniform(120, 220), patch.radius * 5)
    grain = _noise_at(outwards, angle, draws)
    grain -= 0.5
    grain *= 8
    return _edges(grain, draws)


def foliage(patch: Patch, draws: Draws) -> Field:
    """Clumps of leaves: isotropic noise with strong contrast."""
    fineness = min(draws.uniform(90, 180), patch.radius * 5)
    clumps = _noise_at(patch.x * fineness, patch.y * fineness, draws)
    clumps -= 0.5
    clumps *= 5
    return _edges(clumps, draws)


def marble(patch: Patch, draws: Draws) -> Field:
    """Weak broad noise, the commonest texture of things that have no class."""
    fineness = draws.uniform(10, 40)
    return _noise_at(patch.x * fineness, patch.y * fineness, draws)


def plain(patch: Patch, draws: Draws) -> Field:
    """No texture at all."""
    return np.full_like(patch.x, draws.unit())
