"""Persons: a posed body painted with its part and surface maps.

Positions are pixels with edges on whole numbers: pixel i spans i to i + 1 and
is judged at its middle. The camera sees half of every tube; the azimuth is
taken to grow evenly from one edge of the tube to the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clove_ssl.data.scenes.bodies import BONES, KEYPOINT_NAMES, Bone, Point, Pose, draw_pose
from clove_ssl.data.scenes.canvas import Colour, Light, Stamp, draw_colours, stain
from clove_ssl.data.scenes.numbers import Draws, Field, clamp, heading, radii, wave
from clove_ssl.data.scenes.shapes import MARGIN

_FAR = 1e4  # pixels; further than any bone
_REACH = 0.1  # body heights; no bone is thicker


@dataclass(frozen=True)
class Figure:
    """A person in the image, before anything is painted over it."""

    stamp: Stamp
    keypoints: NDArray[np.float64]  # (17, 2)
    turned_away: NDArray[np.bool_]  # (17,) on the far side of the head


@dataclass(frozen=True)
class _Dress:
    """Colours of one person, and the hoops on its clothes."""

    colours: dict[str, tuple[Colour, Colour]]
    hoops: float  # per body height
    sharpness: float


@dataclass(frozen=True)
class _Tube:
    """A bone as the camera sees it."""

    rows: slice  # within the sheet
    columns: slice
    axis: Point
    distance: Field  # (h, w) pixels, negative inside
    along: Field  # (h, w) U: 0 at the start of the bone, 1 at its end
    across: Field  # (h, w) -1 to 1; 1 is on the right of a bone that hangs down


class _Sheet:
    """The box of a figure, to which bones are added back to front."""

    def __init__(self, rows: slice, columns: slice) -> None:
        self.rows, self.columns = rows, columns
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        self.distance = np.full(shape, _FAR, np.float32)
        self.colours = np.zeros((3, *shape), np.float32)
        self.parts = np.zeros(shape, np.uint8)
        self.surface = np.zeros((*shape, 2), np.float32)

    def add(self, tube: _Tube, *, colours: Field, parts: NDArray[np.uint8], around: Field) -> None:
        """Cover what lies behind a bone; beyond every border the nearest bone lends its colour."""
        box = tube.rows, tube.columns
        covered = (tube.distance <= 0) | (tube.distance < self.distance[box])
        np.minimum(self.distance[box], tube.distance, out=self.distance[box])
        np.copyto(self.colours[:, tube.rows, tube.columns], colours, where=covered)
        np.copyto(self.parts[box], parts, where=covered)
        np.copyto(self.surface[..., 0][box], tube.along, where=covered)
        np.copyto(self.surface[..., 1][box], around, where=covered)


def paint_figure(
    size: int, centre: Point, *, height: float, turn: float, light: Light, draws: Draws
) -> Figure | None:
    """A person in a random pose; None when no pixel of it can be in the image."""
    pose = draw_pose(draws)
    dress = _draw_dress(draws)
    cosine, sine = heading(turn)

    def place(point: Point) -> Point:
        across = point[0] * cosine - point[1] * sine
        down = point[0] * sine + point[1] * cosine
        return centre[0] + height * across, centre[1] + height * down

    joints = {name: place(point) for name, point in pose.joints.items()}
    sheet = _lay_sheet(size, joints, margin=height * _REACH + MARGIN)
    if sheet is None:
        return None
    for bone in _back_to_front(pose):
        tube = _lay_tube(sheet, joints[bone.start], joints[bone.end], bone=bone, height=height)
        if tube is not None:
            parts, around = _wrap(tube, bone, pose.yaw)
            colours = _clothe(tube, bone, yaw=pose.yaw, light=light, dress=dress)
            sheet.add(tube, colours=colours, parts=parts, around=around)
    stamp = Stamp(
        sheet.rows, sheet.columns, sheet.distance, sheet.colours, sheet.parts, sheet.surface
    )
    keypoints = np.array([place(pose.keypoints[name]) for name in KEYPOINT_NAMES])
    return Figure(stamp, keypoints, np.array([n in pose.turned_away for n in KEYPOINT_NAMES]))


def _draw_dress(draws: Draws) -> _Dress:
    colours = {name: draw_colours(draws) for name in ("shirt", "trousers", "skin", "shoes")}
    colours["head"] = (colours["skin"][0], draw_colours(draws)[1])
    return _Dress(colours, hoops=draws.uniform(10, 25), sharpness=draws.uniform(0.3, 2.0))


def _lay_sheet(size: int, joints: dict[str, Point], margin: float) -> _Sheet | None:
    bounds = []
    for axis in (1, 0):
        places = [point[axis] for point in joints.values()]
        start, stop = int(min(places) - margin), int(max(places) + margin) + 1
        bounds.append(slice(max(0, start), min(size, stop)))
    rows, columns = bounds
    if rows.start >= rows.stop or columns.start >= columns.stop:
        return None
    return _Sheet(rows, columns)


def _back_to_front(pose: Pose) -> list[Bone]:
    left_is_near = heading(pose.yaw)[1] > 0
    near, far = ("left", "right") if left_is_near else ("right", "left")
    arm, leg = ("upper_arm", "forearm", "hand"), ("foot", "shin", "thigh")
    order = [f"{far}_{name}" for name in (*arm, *leg)] + [f"{near}_{name}" for name in leg]
    order += ["torso", "head"] + [f"{near}_{name}" for name in arm]
    return [BONES[name] for name in order]


def _lay_tube(
    sheet: _Sheet, start: Point, end: Point, *, bone: Bone, height: float
) -> _Tube | None:
    """The pixels around one bone in coordinates along and across it."""
    first, last = bone.girth[0] * height, bone.girth[1] * height
    margin = max(first, last) + MARGIN
    columns = _within(sheet.columns, start[0], end[0], margin)
    rows = _within(sheet.rows, start[1], end[1], margin)
    if columns.start >= columns.stop or rows.start >= rows.stop:
        return None
    step = end[0] - start[0], end[1] - start[1]
    length = math.sqrt(step[0] * step[0] + step[1] * step[1])
    axis = step[0] / length, step[1] / length
    x = _middles(columns, sheet.columns.start - start[0])[None, :]
    y = _middles(rows, sheet.rows.start - start[1])[:, None]
    along = x * axis[0] + y * axis[1]
    across = x * axis[1] - y * axis[0]
    nearest = np.divide(along, length, dtype=np.float32)
    clamp(nearest)
    radius = nearest * (last - first)
    radius += first
    nearest *= length
    np.subtract(along, nearest, out=nearest)
    distance = radii(nearest, across)
    distance -= radius
    across /= radius
    along += first
    along /= length + first + last
    return _Tube(rows, columns, axis, distance, clamp(along), clamp(across, -1, 1))


def _within(bounds: slice, a: float, b: float, margin: float) -> slice:
    """Pixels between two places, counted from the start of ``bounds`` and cut to it."""
    start, stop = int(min(a, b) - margin), int(max(a, b) + margin) + 1
    start, stop = max(bounds.start, start), min(bounds.stop, stop)
    return slice(start - bounds.start, stop - bounds.start)


def _middles(pixels: slice, shift: float) -> Field:
    middles = np.arange(pixels.start, pixels.stop, dtype=np.float32)
    middles += 0.5 + shift
    return middles


def _wrap(tube: _Tube, bone: Bone, yaw: float) -> tuple[NDArray[np.uint8], Field]:
    """Part of every pixel and V, which starts again at each of the two seams."""
    first, second = bone.parts
    if first == second:
        return np.full(tube.across.shape, first, np.uint8), tube.across * 0.5 + 0.5
    half_turns = tube.across * 0.5
    half_turns += 2 * (yaw - bone.middle + 0.25)
    seam = np.floor(half_turns)
    half_turns -= seam
    seam *= 0.5
    on_second = seam != np.floor(seam)
    return np.where(on_second, np.uint8(second), np.uint8(first)), half_turns


def _clothe(tube: _Tube, bone: Bone, *, yaw: float, light: Light, dress: _Dress) -> Field:
    """Colours of a bone: hoops on clothes, hair around a face, shaded like a tube."""
    if bone.dress == "head":
        mix = _hair(tube, yaw)
    elif bone.dress == "skin":
        mix = np.zeros_like(tube.along)
    else:
        extent = bone.length + bone.girth[0] + bone.girth[1]
        mix = wave(tube.along * (dress.hoops * extent))
        mix *= dress.sharpness
        mix += 0.5
        clamp(mix)
    first, second = dress.colours[bone.dress]
    facing = (light.towards[0] * tube.axis[1] - light.towards[1] * tube.axis[0]) * light.shading
    shade = tube.across * -0.35
    shade += facing
    shade *= tube.across
    shade += 1.0
    colours = stain(mix, first, second)
    colours *= shade
    return colours


def _hair(tube: _Tube, yaw: float) -> Field:
    azimuth = tube.across * 0.25 + yaw
    azimuth -= np.floor(azimuth + 0.5)
    bald = (np.abs(azimuth) < 0.18) & (tube.along > 0.32)
    hair: Field = np.logical_not(bald).astype(np.float32)
    return hair
