"""The human figure as numbers: bones, poses, keypoints and its surface.

A figure is made of bones, each a tapering tube. It looks towards the camera at
yaw 0 and shows its left side at yaw 1/4; all bones share the yaw. Around a tube
runs the azimuth, in turns: 0 at the front, growing towards the person's left.
Two parts share a tube, half a turn each, so a part is a rectangle rolled into
half a tube: U runs along the bone, V around it, and the shortest way between
two points of a part is a straight line on that rectangle. Hands and feet are
one part each, with V across what the camera sees of them.

Parts follow the numbering of DensePose, 1 to 24 with 0 for none; keypoints are
those of COCO. Lengths are body heights, y down, the origin at the hips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clove_ssl.data.scenes.numbers import Draws, heading

KEYPOINT_NAMES: tuple[str, ...] = (
    "nose",
    "left_eye",
    "right_eye",
    "left_ear",
    "right_ear",
    "left_shoulder",
    "right_shoulder",
    "left_elbow",
    "right_elbow",
    "left_wrist",
    "right_wrist",
    "left_hip",
    "right_hip",
    "left_knee",
    "right_knee",
    "left_ankle",
    "right_ankle",
)
PART_COUNT = 24

Point = tuple[float, float]


@dataclass(frozen=True)
class Bone:
    """A tube between two joints."""

    start: str
    end: str
    length: float
    girth: tuple[float, float]  # radii at its start and its end
    parts: tuple[int, int]  # the half turn around ``middle``, and the other one
    dress: str  # what covers it
    middle: float = 0.0  # azimuth


def _limbs(side: str, parts: tuple[tuple[int, int], ...]) -> dict[str, Bone]:
    upper_arm, forearm, hand, thigh, shin, foot = parts
    shoulder, elbow, wrist = f"{side}_shoulder", f"{side}_elbow", f"{side}_wrist"
    hip, knee, ankle = f"{side}_hip", f"{side}_knee", f"{side}_ankle"
    return {
        f"{side}_upper_arm": Bone(shoulder, elbow, 0.16, (0.036, 0.030), upper_arm, "shirt"),
        f"{side}_forearm": Bone(elbow, wrist, 0.14, (0.030, 0.023), forearm, "skin"),
        f"{side}_hand": Bone(wrist, f"{side}_fingers", 0.035, (0.024, 0.022), hand, "skin"),
        f"{side}_thigh": Bone(hip, knee, 0.22, (0.056, 0.042), thigh, "trousers"),
        f"{side}_shin": Bone(knee, ankle, 0.22, (0.042, 0.030), shin, "trousers"),
        f"{side}_foot": Bone(ankle, f"{side}_toes", 0.05, (0.029, 0.024), foot, "shoes"),
    }


BONES: dict[str, Bone] = {
    "torso": Bone("neck", "pelvis", 0.22, (0.100, 0.080), (2, 1), "shirt"),
    "head": Bone("crown", "chin", 0.05, (0.062, 0.056), (24, 23), "head", middle=0.25),
    **_limbs("left", ((17, 15), (21, 19), (4, 4), (10, 8), (14, 12), (5, 5))),
    **_limbs("right", ((18, 16), (22, 20), (3, 3), (9, 7), (13, 11), (6, 6))),
}


@dataclass(frozen=True)
class Pose:
    """Where the joints and keypoints of one figure are."""

    joints: dict[str, Point]
    keypoints: dict[str, Point]
    turned_away: frozenset[str]  # keypoints on the far side of the head
    yaw: float


def draw_pose(draws: Draws) -> Pose:
    """Any yaw, arms and legs moved at random, the head a little tilted."""
    # Most people are seen more from the front or the back than from the side.
    yaw = draws.choice((0.0, 0.0, 0.5)) + draws.uniform(-0.2, 0.2)
    joints: dict[str, Point] = {"pelvis": (0.0, -0.02), "neck": (0.0, -0.24)}
    for side, sign in (("left", 1.0), ("right", -1.0)):
        outwards = sign * heading(yaw)[0]
        joints |= _arm(side, outwards, draws) | _leg(side, outwards, yaw=yaw, draws=draws)
    up_x, up_y = heading(0.75 + draws.uniform(-0.05, 0.05))
    joints["chin"] = (0.06 * up_x, -0.31 + 0.06 * up_y)
    joints["crown"] = (0.11 * up_x, -0.31 + 0.11 * up_y)
    face, turned_away = _face(joints["chin"], (up_x, up_y), yaw)
    body = {name: joints[name] for name in KEYPOINT_NAMES if name in joints}
    return Pose(joints, face | body, turned_away, yaw)


def _arm(side: str, outwards: float, draws: Draws) -> dict[str, Point]:
    away = math.copysign(1.0, outwards)
    lift = draws.uniform(0.01, 0.14) if draws.chance(0.6) else draws.uniform(0.14, 0.45)
    bend = lift + draws.uniform(-0.1, 0.25)
    shoulder = (0.115 * outwards, -0.275)
    elbow = _swing(shoulder, BONES[f"{side}_upper_arm"].length, lift * away)
    wrist = _swing(elbow, BONES[f"{side}_forearm"].length, bend * away)
    fingers = _swing(wrist, BONES[f"{side}_hand"].length, bend * away)
    names = ("shoulder", "elbow", "wrist", "fingers")
    return _named(side, names, (shoulder, elbow, wrist, fingers))


def _leg(side: str, outwards: float, *, yaw: float, draws: Draws) -> dict[str, Point]:
    away = math.copysign(1.0, outwards)
    spread = draws.uniform(-0.01, 0.09) if draws.chance(0.75) else draws.uniform(0.09, 0.2)
    bend = spread - draws.uniform(-0.02, 0.1)
    hip = (0.055 * outwards, 0.02)
    knee = _swing(hip, BONES[f"{side}_thigh"].length, spread * away)
    ankle = _swing(knee, BONES[f"{side}_shin"].length, bend * away)
    forwards = -heading(yaw)[1]
    toes = (ankle[0] + 0.045 * forwards + 0.01 * away, ankle[1] + 0.02)
    return _named(side, ("hip", "knee", "ankle", "toes"), (hip, knee, ankle, toes))


def _named(side: str, names: tuple[str, ...], points: tuple[Point, ...]) -> dict[str, Point]:
    return {f"{side}_{name}": point for name, point in zip(names, points, strict=True)}


def _swing(start: Point, length: float, angle: float) -> Point:
    """The end of a bone that hangs from ``start``, lifted by ``angle`` to the right."""
    down, right = heading(angle)
    return start[0] + length * right, start[1] + length * down


_FACE = {  # azimuth, height above the chin joint
    "nose": (0.0, 0.012),
    "left_eye": (0.07, 0.032),
    "right_eye": (-0.07, 0.032),
    "left_ear": (0.22, 0.022),
    "right_ear": (-0.22, 0.022),
}


def _face(chin: Point, up: Point, yaw: float) -> tuple[dict[str, Point], frozenset[str]]:
    places, turned_away = {}, set()
    for name, (azimuth, height) in _FACE.items():
        turn = azimuth - yaw
        turn -= math.floor(turn + 0.5)
        if abs(turn) > 0.25:
            turned_away.add(name)
        # The picture of the head is linear in the azimuth, like V.
        offset = 0.9 * BONES["head"].girth[1] * (1 - abs(4 * abs(turn) - 1))
        right = math.copysign(offset, turn)
        places[name] = (
            chin[0] + height * up[0] - right * up[1],
            chin[1] + height * up[1] + right * up[0],
        )
    return places, frozenset(turned_away)


@cache
def parts_at(keypoint: str) -> frozenset[int]:
    """Parts of which one shows where the keypoint is visible."""
    if keypoint in _FACE:
        return frozenset(BONES["head"].parts)
    touching = {
        part for bone in BONES.values() if keypoint in (bone.start, bone.end) for part in bone.parts
    }
    on_torso = keypoint.endswith(("shoulder", "hip"))
    return frozenset(touching | set(BONES["torso"].parts if on_torso else ()))


@cache
def part_extents() -> NDArray[np.float64]:
    """Lengths of every part along U and along V, in body heights: (25, 2), row 0 unused."""
    extents = np.zeros((PART_COUNT + 1, 2))
    for bone in BONES.values():
        around = math.pi * (bone.girth[0] + bone.girth[1]) / 2
        for part in bone.parts:
            extents[part] = bone.length + bone.girth[0] + bone.girth[1], around
    return extents


def surface_distance(
    parts_a: ArrayLike, surface_a: ArrayLike, parts_b: ArrayLike, surface_b: ArrayLike
) -> NDArray[np.float64]:
    """Geodesic distance between points of the body, in body heights.

    Points are part numbers (...) with their U and V (..., 2). Points of different
    parts, or off the body, are infinitely far from each other.
    """
    parts = np.asarray(parts_a)
    apart = np.subtract(surface_a, surface_b, dtype=np.float64) * part_extents()[parts]
    same = (parts == np.asarray(parts_b)) & (parts > 0)
    return np.where(same, np.hypot(apart[..., 0], apart[..., 1]), np.inf)
