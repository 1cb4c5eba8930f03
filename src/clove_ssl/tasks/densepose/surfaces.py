"""The surface of the human body: its 24 parts, and distances along it.

A place on the body is a part from 1 to 24 with U and V between 0 and 1; part 0 is none. Scores
need the way along the surface between two places, which a :class:`Surface` knows, in metres.
Training on mirrored images needs the place that a mirror exchanges for another, which a
:class:`Mirror` knows.

There are two bodies: the figures of the built-in scenes, whose surface is given by formulas, and
the mesh of the DensePose project, read from its files (``surface_files.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.scenes.bodies import PART_COUNT, surface_distance

__all__ = [
    "KAPPA",
    "MIRROR_PARTS",
    "PART_COUNT",
    "FigureSurface",
    "Mirror",
    "Places",
    "Surface",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_KAPPA_OF_REGION = (0.351, 0.107, 0.126, 0.237, 0.173, 0.142, 0.128, 0.150)
_PARTS_OF_REGION = (2, 2, 2, 4, 4, 4, 4, 2)  # torso, hands, feet, thighs, shins, arms, ..., head
# Part 0 is nobody's: NaN would show in a score if it were ever asked for.
KAPPA: Floats = np.array([np.nan, *np.repeat(_KAPPA_OF_REGION, _PARTS_OF_REGION)])
"""How far a point of part 1 to 24 may be off, in metres: (25,)."""

MIRROR_PARTS: Ints = np.array(
    [0, 1, 2, *(part + (1 if part % 2 else -1) for part in range(3, PART_COUNT + 1))]
)
"""The part on the other side of the body: (25,)."""


@dataclass(frozen=True)
class Places:
    """Places on the body, as many and in whatever shape."""

    parts: Ints  # (...) 0 for none
    surface: Floats  # (..., 2) U, V


class Surface(Protocol):
    """A body whose surface can be measured."""

    def distances(self, a: Places, b: Places) -> Floats:
        """The way along the surface between places, in metres; infinite where there is none.

        Shapes follow numpy's broadcasting. Places of part 0 are infinitely far from everything.
        """


class Mirror(Protocol):
    """A body whose two sides are known."""

    def mirrored(self, places: Places) -> Places:
        """The places that a mirror shows instead."""


@dataclass(frozen=True)
class FigureSurface:
    """The body of the built-in figures, on which there is no way from part to part."""

    height: float = 1.7
    """Metres of a figure, so that the tolerances of scores mean what they mean on people."""

    def distances(self, a: Places, b: Places) -> Floats:
        """The length of the straight line on a part, which is a rolled-up rectangle."""
        return self.height * surface_distance(a.parts, a.surface, b.parts, b.surface)

    def mirrored(self, places: Places) -> Places:
        """Left and right change places; V, which runs around a bone, runs the other way."""
        surface = places.surface.copy()
        on_body = places.parts > 0
        surface[on_body, 1] = 1 - surface[on_body, 1]
        return Places(MIRROR_PARTS[places.parts], surface)
