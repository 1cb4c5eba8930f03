"""Built-in scenes: repeatable, varied, and a source like any other."""

from __future__ import annotations

import io
import math
import pickle
import zlib

import numpy as np
import pytest
from PIL import Image

from clove_ssl.data.scenes import (
    KEYPOINT_NAMES,
    MIN_AREA,
    PART_COUNT,
    SCENE_CLASSES,
    Scene,
    SceneSource,
    paint_scene,
    surface_distance,
)
from clove_ssl.data.scenes.bodies import BONES, draw_pose, part_extents, parts_at
from clove_ssl.data.scenes.canvas import Light
from clove_ssl.data.scenes.numbers import Draws
from clove_ssl.data.scenes.persons import paint_figure
from clove_ssl.errors import UserError

PERSON = SCENE_CLASSES.index("person") + 1


@pytest.fixture(scope="module")
def many() -> list[Scene]:
    return [paint_scene(index, size=96) for index in range(200)]


def checksum(scene: Scene) -> str:
    maps = (scene.image, scene.semantic, scene.parts, scene.surface)
    keypoints = [thing.keypoints for thing in scene.objects if thing.keypoints is not None]
    return f"{zlib.crc32(b''.join(array.tobytes() for array in (*maps, *keypoints))):08x}"


@pytest.mark.parametrize(
    ("index", "size", "seed", "recorded"),
    [(0, 128, 0, "26d030d2"), (4, 96, 1, "876bfae3"), (123456, 600, 7, "6a4024f2")],
)
def test_scenes_are_the_recorded_ones(index: int, size: int, seed: int, recorded: str) -> None:
    """The bytes of a scene are part of every run that names it; they must not move."""
    assert checksum(paint_scene(index, size=size, seed=seed)) == recorded


def test_drawing_other_scenes_in_between_changes_nothing() -> None:
    before = checksum(paint_scene(5, size=64))
    paint_scene(6, size=96)
    assert checksum(paint_scene(5, size=64)) == before


def test_no_two_scenes_are_alike(many: list[Scene]) -> None:
    assert len({scene.image.tobytes() for scene in many}) == len(many)


def test_every_class_is_seen_in_many_scenes(many: list[Scene]) -> None:
    seen = np.zeros(len(SCENE_CLASSES) + 1, int)
    for scene in many:
        seen[list({thing.category for thing in scene.objects})] += 1
    assert seen[0] == 0
    assert seen[1:].min() >= len(many) // 5
    assert seen[1:].max() <= len(many) * 3 // 4


def test_scenes_show_three_to_eight_objects_unless_some_are_covered(many: list[Scene]) -> None:
    counts = np.array([len(scene.objects) for scene in many])
    assert counts.max() <= 8
    assert np.mean(counts >= 3) > 0.9
    assert len(np.unique(counts)) >= 6


def test_objects_cover_each_other_and_vary_in_size(many: list[Scene]) -> None:
    spans = [
        max(thing.box[2] - thing.box[0], thing.box[3] - thing.box[1]) / 96
        for scene in many
        for thing in scene.objects
    ]
    low, high = np.quantile(spans, [0.1, 0.9])
    assert low < 0.2
    assert high > 0.5
    hidden = sum((keypoints_of(scene)[:, 2] == 1).sum() for scene in many)
    assert hidden > 100


def keypoints_of(scene: Scene) -> np.ndarray:
    rows = [thing.keypoints for thing in scene.objects if thing.keypoints is not None]
    return np.concatenate(rows) if rows else np.zeros((0, 3))


def test_specks_stay_in_the_semantic_map() -> None:
    scene = paint_scene(23, size=48)
    listed = np.any([thing.mask for thing in scene.objects], axis=0)
    specks = (scene.semantic > 0) & ~listed
    assert 0 < specks.sum() < MIN_AREA


def test_colours_of_a_class_differ_from_scene_to_scene(many: list[Scene]) -> None:
    for category in range(1, len(SCENE_CLASSES) + 1):
        colours = [
            scene.image[scene.semantic == category].mean(axis=0)
            for scene in many
            if (scene.semantic == category).sum() > 50
        ]
        assert np.std(colours, axis=0).min() > 25


def test_every_part_and_every_keypoint_is_visible_somewhere(many: list[Scene]) -> None:
    pixels = np.bincount(np.concatenate([scene.parts.ravel() for scene in many]))
    assert len(pixels) == PART_COUNT + 1
    assert pixels.min() > 0
    persons = np.stack(
        [thing.keypoints for s in many for thing in s.objects if thing.category == PERSON]
    )
    for visibility in (1, 2):
        assert ((persons[:, :, 2] == visibility).sum(axis=0) >= 3).all()
    assert (persons[:, :, 2] == 0).any()


def test_a_visible_wrist_is_on_the_hand_or_forearm_of_its_side(many: list[Scene]) -> None:
    sides = {"left_wrist": {4, 19, 21}, "right_wrist": {3, 20, 22}}
    for name, parts in sides.items():
        found = set()
        for scene in many:
            for x, y, v in keypoints_of(scene)[KEYPOINT_NAMES.index(name) :: 17]:
                found |= {int(scene.parts[int(y), int(x)])} if v == 2 else set()
        assert found
        assert found <= parts


def test_faces_are_visible_from_the_front_only() -> None:
    for index in range(50):
        pose = draw_pose(Draws(0, index))
        towards_camera = math.cos(2 * math.pi * pose.yaw) > 0
        assert ("nose" not in pose.turned_away) == towards_camera
        left, right = pose.joints["left_shoulder"], pose.joints["right_shoulder"]
        assert (left[0] > right[0]) == towards_camera


def test_bones_keep_their_lengths_in_every_pose() -> None:
    for index in range(20):
        joints = draw_pose(Draws(1, index)).joints
        for name, bone in BONES.items():
            if not name.endswith("foot"):  # seen foreshortened
                length = math.dist(joints[bone.start], joints[bone.end])
                assert length == pytest.approx(bone.length)


def test_u_grows_evenly_by_one_pixel_per_pixel_along_a_bone() -> None:
    height = 300.0
    light = Light(towards=(0.0, -1.0), shading=0.2, shadow=0.0, reach=0.0)
    figure = paint_figure(400, (200, 200), height=height, turn=0.1, light=light, draws=Draws(0, 3))
    assert figure is not None
    parts, surface = figure.stamp.parts, figure.stamp.surface
    assert parts is not None
    assert surface is not None
    for part in (2, 24, 10, 13, 17, 22):
        inner = surrounded((parts == part) & (figure.stamp.distance <= 0))
        steps = np.stack(np.gradient(surface[..., 0]))[:, inner]
        pixels = np.hypot(*steps) * part_extents()[part, 0] * height
        assert len(pixels) > 50
        np.testing.assert_allclose(pixels, 1, rtol=1e-3)


def surrounded(mask: np.ndarray) -> np.ndarray:
    shifts = [np.roll(mask, shift, axis) for shift in (1, -1) for axis in (0, 1)]
    return np.all([mask, *shifts], axis=0)


def test_distance_runs_along_the_bone_and_around_it() -> None:
    forearm = BONES["left_forearm"]
    length, around = forearm.length + sum(forearm.girth), math.pi * sum(forearm.girth) / 2
    for part in forearm.parts:
        assert surface_distance(part, (0, 0.5), part, (1, 0.5)) == pytest.approx(length)
        assert surface_distance(part, (0.5, 0), part, (0.5, 1)) == pytest.approx(around)
        diagonal = surface_distance(part, (0, 0), part, (1, 1))
        assert diagonal == pytest.approx(math.hypot(length, around))


def test_other_parts_and_the_background_are_infinitely_far() -> None:
    distance = surface_distance([1, 0, 3], np.zeros((3, 2)), [2, 0, 3], np.zeros((3, 2)))
    assert distance.tolist() == [math.inf, math.inf, 0.0]


def test_all_parts_belong_to_bones_and_all_keypoints_to_parts() -> None:
    assert {part for bone in BONES.values() for part in bone.parts} == set(range(1, 25))
    assert all(parts_at(name) for name in KEYPOINT_NAMES)


def test_ppm_files_hold_the_pixels_of_the_scene() -> None:
    source = SceneSource(3, size=48, split="test")
    with Image.open(io.BytesIO(source.read(2))) as image:
        assert image.format == "PPM"
        assert (np.asarray(image) == source.scene(2).image).all()


def test_a_source_numbers_and_names_its_scenes() -> None:
    source = SceneSource(20)
    assert len(source) == 20
    assert source.name(12) == "scenes/train/000012"
    assert source.scene(0).image.shape == (160, 160, 3)
    for index in (-1, 20):
        with pytest.raises(IndexError):
            source.read(index)


def test_train_and_test_share_no_scene() -> None:
    train, test = SceneSource(20, size=32), SceneSource(20, size=32, split="test")
    shared = {train.read(i) for i in range(20)} & {test.read(i) for i in range(20)}
    assert not shared


def test_a_pickled_source_reads_the_same_bytes() -> None:
    source = SceneSource(5, size=40, split="test")
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(4) == source.read(4)
    assert copy.name(4) == source.name(4)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UserError, match="1 or more"):
        SceneSource(0)
    with pytest.raises(UserError, match="32 or more"):
        SceneSource(5, size=8)
    with pytest.raises(UserError, match="32 or more"):
        paint_scene(0, size=31)
    with pytest.raises(UserError, match="'train' or 'test'"):
        SceneSource(5, split="val")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must lie in"):
        paint_scene(-1)
