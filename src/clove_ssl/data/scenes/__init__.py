"""Built-in scenes: procedural images with exact dense labels, made from a seed.

A scene is a cluttered background with three to eight textured objects that
occlude and shade each other, persons among them. A class is a family of
outlines together with a family of textures; colours, lighting, scale, place
and rotation are free, so that colour alone says little about the class.

The same index, seed and size give the same bytes on every platform. Labels come
from the very distances that painted the pixels: every pixel belongs to the
topmost thing that covers its middle.

Coordinates are pixels with edges on whole numbers: pixel i spans i to i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.scenes.backgrounds import develop, paint_background
from clove_ssl.data.scenes.bodies import KEYPOINT_NAMES, PART_COUNT, parts_at, surface_distance
from clove_ssl.data.scenes.canvas import Canvas, Light, draw_light
from clove_ssl.data.scenes.numbers import Draws
from clove_ssl.data.scenes.persons import Figure
from clove_ssl.data.scenes.things import (
    PERSON,
    SCENE_CLASSES,
    Placement,
    draw_layout,
    paint_clutter,
    paint_object,
    paint_person,
)
from clove_ssl.errors import UserError

__all__ = [
    "KEYPOINT_NAMES",
    "MIN_AREA",
    "PART_COUNT",
    "SCENE_CLASSES",
    "Scene",
    "SceneObject",
    "SceneSource",
    "paint_scene",
    "surface_distance",
]

MIN_AREA = 16
"""Objects of which fewer pixels are visible stay in the semantic map but are not listed."""

_SMALLEST = 32  # pixels; below it most objects are specks
_SEEDS = {"train": 0, "test": 1}


@dataclass(frozen=True)
class SceneObject:
    """What is visible of one object."""

    category: int  # 1 for SCENE_CLASSES[0], and so on
    box: tuple[float, float, float, float]  # x0, y0, x1, y1 around the mask
    mask: NDArray[np.bool_]  # (H, W)
    keypoints: NDArray[np.float32] | None  # (17, 3) x, y, v of a person; v as in COCO


@dataclass(frozen=True)
class Scene:
    """An image with all its labels; 0 is the background in every map."""

    image: NDArray[np.uint8]  # (H, W, 3)
    objects: tuple[SceneObject, ...]  # back to front
    semantic: NDArray[np.uint8]  # (H, W) category of every pixel
    parts: NDArray[np.uint8]  # (H, W) body part, 1 to PART_COUNT
    surface: NDArray[np.float32]  # (H, W, 2) U and V on the part


@dataclass(frozen=True)
class _Painting:
    image: NDArray[np.uint8]
    canvas: Canvas
    owners: list[tuple[int, Figure | None]]  # category of owner 1, 2, ... and its figure


def paint_scene(index: int, *, size: int = 160, seed: int = 0) -> Scene:
    """The scene with this number: image and labels."""
    _check_size(size)
    painting = _paint(index, size=size, seed=seed)
    canvas = painting.canvas
    categories = np.array([0, *(category for category, _ in painting.owners)], np.uint8)
    objects = [
        _describe(canvas, owner, category=category, figure=figure)
        for owner, (category, figure) in enumerate(painting.owners, start=1)
    ]
    return Scene(
        image=painting.image,
        objects=tuple(thing for thing in objects if thing is not None),
        semantic=categories[canvas.owner],
        parts=canvas.parts,
        surface=canvas.surface,
    )


class SceneSource:
    """Scenes as a source of encoded images, with labels for those who ask.

    The splits never share a scene. Images are binary PPM: a header and the raw
    pixels, which costs next to nothing to write and to decode.
    """

    def __init__(
        self, count: int, size: int = 160, split: Literal["train", "test"] = "train"
    ) -> None:
        if count < 1:
            raise UserError(f"{count} scenes are none to learn from. Ask for 1 or more.")
        _check_size(size)
        if split not in _SEEDS:
            raise UserError(f"Scenes have no split {split!r}. Ask for 'train' or 'test'.")
        self.count, self.size, self.split = count, size, split

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes:
        """The image as a binary PPM file."""
        image = _paint(self._checked(index), size=self.size, seed=_SEEDS[self.split]).image
        return b"P6\n%d %d\n255\n" % (self.size, self.size) + image.tobytes()

    def name(self, index: int) -> str:
        """A name such as ``scenes/train/000012``."""
        return f"scenes/{self.split}/{self._checked(index):06d}"

    def scene(self, index: int) -> Scene:
        """The image with its labels."""
        return paint_scene(self._checked(index), size=self.size, seed=_SEEDS[self.split])

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"scene {index} of {self.count}")
        return index


def _check_size(size: int) -> None:
    if size < _SMALLEST:
        raise UserError(
            f"Scenes of {size} pixels are too small to show objects. "
            f"Ask for a size of {_SMALLEST} or more; 160 is the default."
        )


def _paint(index: int, *, size: int, seed: int) -> _Painting:
    draws = Draws(seed, index)
    light = draw_light(draws, size)
    canvas = Canvas(paint_background(size, draws))
    for _ in range(draws.integer(2, 6)):
        _add_clutter(canvas, largest=0.6, light=light, draws=draws)
    owners: list[tuple[int, Figure | None]] = []
    for placement in draw_layout(draws):
        category = SCENE_CLASSES.index(placement.name) + 1
        figure = _add_object(canvas, placement, owner=len(owners) + 1, light=light, draws=draws)
        owners.append((category, figure))
        if draws.chance(0.15):
            _add_clutter(canvas, largest=0.3, light=light, draws=draws)
    return _Painting(develop(canvas.pixels, draws), canvas, owners)


def _add_object(
    canvas: Canvas, placement: Placement, *, owner: int, light: Light, draws: Draws
) -> Figure | None:
    size = len(canvas.owner)
    if placement.name == PERSON:
        figure = paint_person(placement, size, light=light, draws=draws)
        if figure is not None:
            canvas.paint(figure.stamp, owner, light)
        return figure
    stamp = paint_object(placement, size, light=light, draws=draws)
    if stamp is not None:
        canvas.paint(stamp, owner, light)
    return None


def _add_clutter(canvas: Canvas, *, largest: float, light: Light, draws: Draws) -> None:
    stamp = paint_clutter(len(canvas.owner), largest=largest, light=light, draws=draws)
    if stamp is not None:
        canvas.paint(stamp, 0, light)


def _describe(
    canvas: Canvas, owner: int, *, category: int, figure: Figure | None
) -> SceneObject | None:
    """The labels of one object; None when too little of it is visible."""
    mask = canvas.owner == owner
    if np.count_nonzero(mask) < MIN_AREA:
        return None
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1))
    keypoints = None if figure is None else _visible_keypoints(canvas, owner, figure)
    return SceneObject(category, box, mask, keypoints)


def _visible_keypoints(canvas: Canvas, owner: int, figure: Figure) -> NDArray[np.float32]:
    """Keypoints with COCO's visibility: 0 outside the image, 1 hidden, 2 visible."""
    keypoints = np.zeros((len(KEYPOINT_NAMES), 3), np.float32)
    size = len(canvas.owner)
    for row, name, (x, y), away in zip(
        keypoints,
        KEYPOINT_NAMES,
        figure.keypoints.tolist(),
        figure.turned_away.tolist(),
        strict=True,
    ):
        if 0 <= x < size and 0 <= y < size:
            at = int(y), int(x)
            own = canvas.owner[at] == owner and int(canvas.parts[at]) in parts_at(name)
            row[:] = x, y, 2 if own and not away else 1
    return keypoints
