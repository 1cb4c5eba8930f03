"""What holds for every scene: labels agree with each other and with the image."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.data.scenes import (
    MIN_AREA,
    PART_COUNT,
    SCENE_CLASSES,
    Scene,
    paint_scene,
    surface_distance,
)
from clove_ssl.data.scenes.numbers import Draws, heading, turns, wave

PERSON = SCENE_CLASSES.index("person") + 1
scenes = st.builds(
    paint_scene,
    index=st.integers(0, 10**9),
    size=st.integers(32, 160),
    seed=st.integers(0, 2**64 - 1),
)
unit = st.floats(0, 1, width=32)
coordinate = st.floats(-4, 4, width=32).filter(lambda value: abs(value) > 1e-6)


@given(scenes)
def test_boxes_are_tight_around_masks(scene: Scene) -> None:
    for thing in scene.objects:
        rows, columns = np.nonzero(thing.mask)
        tight = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert thing.box == tight
        assert len(rows) >= MIN_AREA


@given(scenes)
def test_a_pixel_belongs_to_one_object_and_has_its_category(scene: Scene) -> None:
    owners = np.zeros(scene.semantic.shape, int)
    for thing in scene.objects:
        owners += thing.mask
        assert (scene.semantic[thing.mask] == thing.category).all()
    assert owners.max(initial=0) <= 1


@given(scenes)
def test_pixels_without_an_object_are_background_or_specks(scene: Scene) -> None:
    listed = np.zeros(scene.semantic.shape, bool)
    for thing in scene.objects:
        listed |= thing.mask
    specks = (scene.semantic > 0) & ~listed
    unlisted = 8 - len(scene.objects)
    assert specks.sum() <= unlisted * (MIN_AREA - 1)


@given(scenes)
def test_the_surface_covers_persons_and_nothing_else(scene: Scene) -> None:
    on_person = scene.semantic == PERSON
    assert ((scene.parts > 0) == on_person).all()
    assert scene.parts.max() <= PART_COUNT
    assert (scene.surface[~on_person] == 0).all()
    assert scene.surface.min() >= 0
    assert scene.surface.max() <= 1


@given(scenes)
def test_visible_keypoints_lie_on_their_own_mask(scene: Scene) -> None:
    for thing in scene.objects:
        assert (thing.keypoints is not None) == (thing.category == PERSON)
        for x, y, visibility in [] if thing.keypoints is None else thing.keypoints:
            if visibility == 2:
                assert thing.mask[int(y), int(x)]
            elif visibility == 0:
                assert x == y == 0
            else:
                assert visibility == 1
                assert 0 <= x < len(scene.image)
                assert 0 <= y < len(scene.image)


@given(scenes)
def test_shapes_and_types_follow_the_image(scene: Scene) -> None:
    height, width, channels = scene.image.shape
    assert height == width
    assert channels == 3
    for labels in (scene.semantic, scene.parts):
        assert labels.shape == (height, width)
        assert labels.dtype == np.uint8
    assert scene.surface.shape == (height, width, 2)
    assert scene.surface.dtype == np.float32
    assert scene.image.dtype == np.uint8


@given(st.integers(1, PART_COUNT), *[st.tuples(unit, unit)] * 3)
def test_distance_on_a_part_is_a_metric(part: int, a: tuple, b: tuple, c: tuple) -> None:
    there, back = surface_distance(part, a, part, b), surface_distance(part, b, part, a)
    assert there == back
    assert (there == 0) == (a == b) or there < 1e-30
    detour = surface_distance(part, a, part, c) + surface_distance(part, c, part, b)
    assert there <= detour + 1e-12


@given(coordinate, coordinate)
def test_turns_follow_the_arc_tangent(x: float, y: float) -> None:
    angle = turns(np.full((1, 1), x, np.float32), np.full((1, 1), y, np.float32)).item()
    assert abs(angle - math.atan2(y, x) / (2 * math.pi)) < 1e-3


@given(st.floats(-20, 20))
def test_waves_and_headings_follow_sine_and_cosine(phase: float) -> None:
    sine, cosine = math.sin(2 * math.pi * phase), math.cos(2 * math.pi * phase)
    height = wave(np.full((1, 1), phase, np.float32)).item()
    assert abs(height - sine) < 0.06
    along, across = heading(phase)
    assert math.isclose(math.hypot(along, across), 1)
    assert along * cosine + across * sine > math.cos(math.radians(3))


@given(st.integers(0, 2**64 - 1), st.integers(-9, 9), st.integers(0, 9))
def test_draws_stay_within_their_limits(seed: int, low: int, extra: int) -> None:
    draws = Draws(seed, 0)
    whole = [draws.integer(low, low + extra) for _ in range(600)]
    assert min(whole) >= low
    assert max(whole) <= low + extra
    assert len(set(whole)) == extra + 1
    assert all(low <= draws.uniform(low, low + 1) <= low + 1 for _ in range(20))
