"""Resizing and mirroring move pixels, boxes, masks and keypoints together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clove_ssl.data.scenes import KEYPOINT_NAMES
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.polygons import fill_polygons
from clove_ssl.tasks.loading.geometry import Placement, mirror_order

sides = st.integers(6, 90)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    return Placement((draw(sides), draw(sides)), (draw(sides), draw(sides)), draw(st.booleans()))


@st.composite
def placed_boxes(draw: st.DrawFn) -> tuple[Placement, tuple[int, int, int, int]]:
    """A placement, and a box of whole pixels in the original image."""
    placement = draw(placements())
    (top, bottom), (left, right) = (
        sorted(draw(st.lists(st.integers(0, side), min_size=2, max_size=2, unique=True)))
        for side in placement.old
    )
    return placement, (left, top, right, bottom)


def bounds(mask: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@given(placed_boxes())
def test_a_box_stays_around_its_mask(case: tuple[Placement, tuple[int, int, int, int]]) -> None:
    placement, (left, top, right, bottom) = case
    mask = np.zeros(placement.old, bool)
    mask[top:bottom, left:right] = True
    box = placement.boxes(np.array([[left, top, right, bottom]], np.float64))[0]
    moved = placement.mask(mask)
    assert moved.shape == placement.new
    if moved.any():  # an object of a pixel may fall between those of a smaller image
        np.testing.assert_allclose(bounds(moved), box, atol=0.5001)


@given(placed_boxes())
def test_a_polygon_moves_with_its_box(case: tuple[Placement, tuple[int, int, int, int]]) -> None:
    placement, (left, top, right, bottom) = case
    outline = np.array([left, top, right, top, right, bottom, left, bottom], np.float64)
    moved = placement.polygon(outline).reshape(-1, 2)
    box = placement.boxes(np.array([[left, top, right, bottom]], np.float64))[0]
    np.testing.assert_allclose([*moved.min(0), *moved.max(0)], box, atol=1e-9)
    height, width = placement.new
    filled = fill_polygons([moved.reshape(-1)], height=height, width=width)
    mask = np.zeros(placement.old, bool)
    mask[top:bottom, left:right] = True
    # They may differ by a pixel along the border, not by an object.
    assert np.count_nonzero(filled != placement.mask(mask)) <= 2 * (height + width)


@given(placements())
def test_masks_take_the_pixels_that_pillow_takes(placement: Placement) -> None:
    mask = np.random.default_rng(0).random(placement.old) < 0.5
    height, width = placement.new
    picture = Image.fromarray(mask.astype(np.uint8)).resize(
        (width, height), Image.Resampling.NEAREST
    )
    expected = np.asarray(picture).astype(bool)
    np.testing.assert_array_equal(
        placement.mask(mask), expected[:, ::-1] if placement.mirrored else expected
    )


@given(placements(), st.floats(0, 1), st.floats(0, 1))
def test_a_bright_spot_is_found_where_its_keypoint_went(
    placement: Placement, across: float, down: float
) -> None:
    (height, width), (new_height, new_width) = placement.old, placement.new
    row, column = min(int(down * height), height - 1), min(int(across * width), width - 1)
    image = np.zeros((height, width, 3), np.uint8)
    image[row, column] = 255
    seen = placement.image(image)[0].double().numpy()
    points = np.array([[[column + 0.5, row + 0.5, 2.0]]])
    x, y, v = placement.keypoints(points, np.array([0]))[0, 0]
    assert v == 2
    at = np.unravel_index(seen.argmax(), seen.shape)
    if seen.max() >= 32:  # else the spot was too small to survive
        np.testing.assert_allclose(
            [at[1] + 0.5, at[0] + 0.5],
            [x, y],
            atol=1 + max(new_width / width, new_height / height) / 2,
        )


@given(placements())
def test_mirroring_is_the_plain_result_seen_in_a_mirror(placement: Placement) -> None:
    rng = np.random.default_rng(1)
    plain = Placement(placement.old, placement.new, mirrored=False)
    mirrored = Placement(placement.old, placement.new, mirrored=True)
    image = rng.integers(0, 256, (*placement.old, 3), dtype=np.uint8)
    assert torch.equal(mirrored.image(image), plain.image(image).flip(2))
    boxes = rng.uniform(0, 1, (5, 2, 2)).cumsum(1).reshape(5, 4) / 2
    boxes *= [placement.old[1], placement.old[0]] * 2
    straight, turned = plain.boxes(boxes), mirrored.boxes(boxes)
    width = placement.new[1]
    np.testing.assert_allclose(turned[:, [0, 2]], width - straight[:, [2, 0]], atol=1e-9)
    np.testing.assert_allclose(turned[:, [1, 3]], straight[:, [1, 3]])


def test_left_and_right_keypoints_change_places() -> None:
    order = mirror_order(tuple(KEYPOINT_NAMES))
    assert order == (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
    points = np.zeros((1, 17, 3))
    points[0] = [[number, 3, 2] for number in range(17)]
    moved = Placement((10, 20), (10, 20), mirrored=True).keypoints(points, np.array(order))
    for number, name in enumerate(KEYPOINT_NAMES):
        swapped = name.replace("left", "*").replace("right", "left").replace("*", "right")
        assert moved[0, number].tolist() == [20 - KEYPOINT_NAMES.index(swapped), 3, 2]


def test_names_of_sides_keep_their_case_and_others_stay() -> None:
    assert mirror_order(("Left hand", "tail", "Right hand")) == (2, 1, 0)


def test_a_side_without_its_partner_is_named() -> None:
    with pytest.raises(UserError, match="'left_eye' has no partner 'right_eye'"):
        mirror_order(("nose", "left_eye"))


def test_keypoints_outside_the_image_count_as_not_labelled() -> None:
    points = np.array([[[5.0, 5.0, 2.0], [21.0, 5.0, 2.0], [3.0, -1.0, 1.0], [9.0, 9.0, 0.0]]])
    moved = Placement((10, 20), (20, 40)).keypoints(points, np.arange(4))
    assert moved[0].tolist() == [[10, 10, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_boxes_are_cut_to_the_image() -> None:
    boxes = Placement((10, 20), (20, 40), mirrored=True).boxes(np.array([[-1.0, 2.0, 21.0, 11.0]]))
    assert boxes.tolist() == [[0, 4, 40, 20]]
