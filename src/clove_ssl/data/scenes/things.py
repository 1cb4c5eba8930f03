"""The classes of things in a scene, how they are laid out, and the clutter around them.

Places and sizes are drawn as shares of the image side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clove_ssl.data.scenes import shapes, textures
from clove_ssl.data.scenes.canvas import Light, Stamp, draw_colours, relief, stain
from clove_ssl.data.scenes.numbers import Draws
from clove_ssl.data.scenes.persons import Figure, paint_figure

MOST_OBJECTS = 8
PERSON = "person"


@dataclass(frozen=True)
class Kind:
    """A class: a family of outlines with a family of textures."""

    outline: shapes.Outline
    texture: textures.Texture
    lean: float = 0.5  # largest rotation, in turns


KINDS: dict[str, Kind] = {
    "target": Kind(shapes.disc, textures.rings),
    "crate": Kind(shapes.box, textures.stripes),
    "star": Kind(shapes.star, textures.spots),
    "ring": Kind(shapes.ring, textures.segments),
    "sail": Kind(shapes.triangle, textures.checks),
    "cross": Kind(shapes.cross, textures.bricks),
    "leaf": Kind(shapes.leaf, textures.veins),
    "gear": Kind(shapes.gear, textures.brushed),
    "tree": Kind(shapes.tree, textures.foliage, lean=0.04),
}
_CLUTTER: list[textures.Texture] = [textures.marble, textures.plain]
SCENE_CLASSES: tuple[str, ...] = (*KINDS, PERSON)


@dataclass(frozen=True)
class Placement:
    """What stands where, before it is painted."""

    name: str
    centre: tuple[float, float]
    span: float  # largest extent


def draw_layout(draws: Draws) -> list[Placement]:
    """Three to eight objects, spread out, the larger ones mostly behind the smaller."""
    layout: list[Placement] = []
    for _ in range(draws.integer(3, MOST_OBJECTS)):
        # One more ticket for persons: they carry keypoint and surface labels.
        name = draws.choice((*SCENE_CLASSES, PERSON))
        low = 0.35 if name == PERSON else 0.15
        share = draws.unit()
        span = low + (0.7 - low) * share * share
        layout.append(Placement(name, _free_place(layout, draws), span))
    jittered = [(placement.span + draws.uniform(-0.2, 0.2), placement) for placement in layout]
    return [placement for _, placement in sorted(jittered, key=lambda pair: -pair[0])]


def _free_place(layout: list[Placement], draws: Draws) -> tuple[float, float]:
    """The one of three random places that is furthest from what stands already."""

    def room(place: tuple[float, float]) -> float:
        gaps = [(place[0] - there.centre[0], place[1] - there.centre[1]) for there in layout]
        return min(right * right + down * down for right, down in gaps)

    places = [(draws.uniform(0.08, 0.92), draws.uniform(0.08, 0.92)) for _ in range(3)]
    return max(places, key=room) if layout else places[0]


def paint_person(placement: Placement, size: int, *, light: Light, draws: Draws) -> Figure | None:
    """A person, upright more often than not."""
    lean = 0.5 if draws.chance(0.15) else 0.06
    return paint_figure(
        size,
        (placement.centre[0] * size, placement.centre[1] * size),
        height=placement.span * size,
        turn=draws.uniform(-lean, lean),
        light=light,
        draws=draws,
    )


def paint_object(placement: Placement, size: int, *, light: Light, draws: Draws) -> Stamp | None:
    """A thing of one of the ``KINDS``; None when it lies outside the image."""
    return _paint_kind(KINDS[placement.name], placement, size, light=light, draws=draws)


def paint_clutter(size: int, *, largest: float, light: Light, draws: Draws) -> Stamp | None:
    """A lump or a pole of no class, sometimes with the texture of one."""
    outline = shapes.blob if draws.chance(0.7) else shapes.bar
    own = draws.chance(0.6)
    texture = draws.choice(_CLUTTER if own else [kind.texture for kind in KINDS.values()])
    share = draws.unit()
    placement = Placement(
        "clutter", (draws.unit(), draws.unit()), 0.1 + (largest - 0.1) * share * share
    )
    return _paint_kind(Kind(outline, texture), placement, size, light=light, draws=draws)


def _paint_kind(
    kind: Kind, placement: Placement, size: int, *, light: Light, draws: Draws
) -> Stamp | None:
    patch = shapes.lay_patch(
        size,
        (placement.centre[0] * size, placement.centre[1] * size),
        radius=placement.span * size / 2,
        turn=draws.uniform(-kind.lean, kind.lean),
    )
    if patch is None:
        return None
    outline = kind.outline(patch, draws)
    colours = stain(kind.texture(patch, draws), *draw_colours(draws))
    colours *= relief(patch, outline, light=light, bulge=draws.uniform(0.05, 0.4))
    distance = np.multiply(outline, patch.radius, out=outline)
    return Stamp(patch.rows, patch.columns, distance, colours)
