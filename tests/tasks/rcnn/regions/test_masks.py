"""Polygons, masks and keypoints: nothing to do, no area, outside of everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders.tasks.detectron2_models import paste_probabilities
from builders.tasks.proposing import masks_in_boxes
from hypothesis import given
from hypothesis import strategies as st
from references.tasks.polygon_fill import filled

from clove_ssl.config.detection import MaskHeadConfig
from clove_ssl.tasks.labels.polygons import fill_polygons, pack_outlines
from clove_ssl.tasks.rcnn.regions.keypoints import (
    KeypointTargets,
    find_keypoints,
    keypoint_loss,
    keypoint_targets,
    regions_with_keypoints,
)
from clove_ssl.tasks.rcnn.regions.masks import (
    _paste_together,
    mask_loss,
    paste_masks,
)
from clove_ssl.tasks.rcnn.regions.roi_heads import MaskHead

NONE = torch.zeros(0, 4)
SQUARE = np.array([2.0, 2.0, 6.0, 2.0, 6.0, 6.0, 2.0, 6.0])

coordinates = st.one_of(st.integers(-8, 20).map(float), st.floats(-8, 20, width=32))


def mask_in_box(box: list[float], *, size: int) -> np.ndarray:
    """The part of the square inside a box."""
    boxes = torch.tensor([box], dtype=torch.float32)
    return masks_in_boxes(pack_outlines([[SQUARE]]), torch.tensor([0]), boxes, size=size)[0].numpy()


@given(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=7))
def test_polygons_are_filled_as_point_by_point(corners: list[tuple[float, float]]) -> None:
    polygon = [number for corner in corners for number in corner]
    mask = fill_polygons([np.array(polygon)], height=9, width=12)
    np.testing.assert_array_equal(mask, filled(polygon, 9, 12))


def test_a_square_on_whole_pixels_fills_them() -> None:
    mask = fill_polygons([SQUARE], height=8, width=8)
    expected = np.zeros((8, 8), dtype=bool)
    expected[2:6, 2:6] = True
    np.testing.assert_array_equal(mask, expected)


def test_several_polygons_are_united_even_where_they_overlap() -> None:
    np.testing.assert_array_equal(
        fill_polygons([SQUARE, SQUARE], height=8, width=8),
        fill_polygons([SQUARE], height=8, width=8),
    )


def test_regions_are_filled_together_as_one_by_one() -> None:
    triangle, bar = (
        np.array([1.0, 1.0, 9.0, 2.0, 4.0, 8.5]),
        np.array([0.0, 3.0, 9.0, 3.0, 9.0, 5.0]),
    )
    outlines = pack_outlines([[triangle], [SQUARE, bar], []])
    objects = torch.tensor([1, 0, 2, 1, 1])
    boxes = torch.tensor([[0, 0, 9, 9], [1, 1, 8, 8], [0, 0, 5, 5], [3.3, 2.1, 7, 7], [0, 0, 1, 1]])
    together = masks_in_boxes(outlines, objects, boxes, size=14)
    for mask, which, box in zip(together, objects, boxes, strict=True):
        alone = masks_in_boxes(outlines, which[None], box[None], size=14)
        assert torch.equal(mask, alone[0])
    assert together.any(dim=(1, 2)).tolist() == [True, True, False, True, False]


def test_a_box_takes_its_part_of_the_polygon_only() -> None:
    mask = mask_in_box([0, 0, 4, 4], size=4)
    expected = np.zeros((4, 4), dtype=bool)
    expected[2:, 2:] = True
    np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize("box", [[20, 20, 30, 30], [-9, -9, -5, -5], [20, 20, 20, 20]])
def test_a_box_beside_the_object_has_an_empty_mask(box: list[int]) -> None:
    assert not mask_in_box(box, size=14).any()


def test_a_box_without_area_inside_the_object_has_a_full_mask() -> None:
    assert mask_in_box([4, 4, 4, 4], size=14).all()


def test_nothing_to_fill_gives_empty_masks() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert masks_in_boxes(pack_outlines([]), nothing, NONE, size=14).shape == (0, 14, 14)
    assert not masks_in_boxes(
        pack_outlines([[]]), torch.tensor([0]), NONE.new_ones(1, 4), size=7
    ).any()
    assert not fill_polygons([], height=5, width=5).any()


def test_a_batch_without_masks_has_a_loss_of_zero_and_a_gradient() -> None:
    logits = torch.zeros(0, 28, 28, requires_grad=True)
    loss = mask_loss(logits, torch.zeros(0, 28, 28, dtype=torch.bool))
    loss.backward()
    assert loss == 0
    assert logits.grad is not None


@pytest.mark.parametrize("regions", [5, 0])
def test_the_mask_head_gives_the_map_of_the_class_alone(regions: int) -> None:
    torch.manual_seed(0)
    head = MaskHead(MaskHeadConfig(convs=1, width=8), 4, num_classes=7, norm="none").double()
    maps = torch.randn(regions, 4, 6, 6, dtype=torch.float64)
    classes = torch.randint(7, (regions,))
    every = head.predictor(torch.relu(head.deconv(head.convs(maps))))  # (R, K, M, M)
    expected = every[torch.arange(regions), classes]
    found = head(maps, classes)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    mine, theirs = (
        torch.autograd.grad((out * weights).sum(), list(head.parameters()), retain_graph=True)
        for out in (found, expected)
    )
    torch.testing.assert_close(mine, theirs)


def test_a_mask_is_pasted_into_its_box_and_half_is_enough() -> None:
    box = torch.tensor([[2.0, 3.0, 6.0, 5.0]])
    half, full = torch.full((1, 2, 2), 0.5), torch.ones(1, 2, 2)
    expected = torch.zeros(2, 8, 8, dtype=torch.bool)
    # Towards the border of a box the mask fades into the zeros outside of it.
    expected[0, 3:5, 3:5] = True
    expected[1, 3:5, 2:6] = True
    pasted = paste_masks(torch.cat([half, full]), box.repeat(2, 1), image_size=(8, 8))
    assert torch.equal(pasted, expected)


@pytest.mark.parametrize(
    "box",
    [[3.0, 3.0, 3.0, 6.0], [3.0, 3.0, 3.0, 3.0], [20.0, 20.0, 30.0, 30.0], [-9.0, 1.0, -5.0, 4.0]],
)
def test_boxes_without_area_or_outside_the_image_paste_nothing(box: list[float]) -> None:
    mask, boxes = torch.ones(1, 28, 28), torch.tensor([box])
    assert not paste_masks(mask, boxes, image_size=(8, 8)).any()
    assert paste_probabilities(mask, boxes, image_size=(8, 8)).sum() == 0


def test_masks_are_pasted_together_as_box_by_box() -> None:
    source = torch.Generator().manual_seed(0)
    masks = torch.rand(40, 14, 14, generator=source)
    corners, sides = (torch.rand(40, 2, generator=source) * 50 - each for each in (10, 0))
    boxes = torch.cat([corners, corners + sides], dim=1)
    boxes[5, 2:] = boxes[5, :2]
    apart = paste_masks(masks, boxes, image_size=(37, 50))
    together = _paste_together(masks, boxes, image_size=(37, 50), threshold=0.5)
    assert torch.equal(together, apart)
    nothing = _paste_together(masks[:0], NONE, image_size=(5, 6), threshold=0.5)
    assert nothing.shape == (0, 5, 6)


def test_no_masks_paste_to_none() -> None:
    assert paste_masks(torch.zeros(0, 28, 28), NONE, image_size=(5, 6)).shape == (0, 5, 6)


def test_keypoints_on_the_lower_right_edge_belong_to_the_last_cell() -> None:
    keypoints = torch.tensor([[[10.0, 20.0, 1.0], [0.0, 0.0, 2.0], [10.1, 5.0, 2.0], [5, 5, 0]]])
    targets = keypoint_targets(keypoints, torch.tensor([[0.0, 0.0, 10.0, 20.0]]))
    assert targets.cells.tolist() == [[56 * 56 - 1, 0, 0, 0]]
    assert targets.valid.tolist() == [[True, True, False, False]]


def test_a_region_without_area_contains_only_the_keypoint_it_is() -> None:
    keypoints = torch.tensor([[[4.0, 4.0, 2.0], [5.0, 4.0, 2.0], [3.0, 3.0, 2.0]]])
    boxes = torch.tensor([[4.0, 4.0, 4.0, 4.0]])
    assert keypoint_targets(keypoints, boxes).valid.tolist() == [[True, False, False]]
    assert regions_with_keypoints(keypoints, boxes).tolist() == [True]


def test_invisible_keypoints_give_a_loss_of_zero_and_a_gradient() -> None:
    for regions in (0, 2):
        logits = torch.zeros(regions, 3, 56, 56, requires_grad=True)
        keypoints, boxes = torch.zeros(regions, 3, 3), torch.zeros(regions, 4)
        loss = keypoint_loss(logits, keypoint_targets(keypoints, boxes))
        loss.backward()
        assert loss == 0
        assert logits.grad is not None


def test_the_loss_of_flat_maps_is_the_logarithm_of_the_number_of_cells() -> None:
    targets = KeypointTargets(torch.tensor([[7, 0]]), torch.tensor([[True, False]]))
    loss = keypoint_loss(torch.zeros(1, 2, 8, 8), targets)
    assert loss.item() == pytest.approx(np.log(64))


def test_no_regions_have_no_keypoints() -> None:
    found = find_keypoints(torch.zeros(0, 17, 56, 56), NONE)
    assert found.points.shape == (0, 17, 2)
    assert found.scores.shape == (0, 17)


def test_a_point_is_found_in_the_middle_of_its_pixel_and_its_score_ignores_the_size() -> None:
    maps = torch.zeros(2, 1, 56, 56)
    maps[:, 0, 30, 10] = 20.0
    boxes = torch.tensor([[100.0, 200.0, 156.0, 256.0], [0.0, 0.0, 0.0, 0.0]])
    found = find_keypoints(maps, boxes)
    assert found.points[0].tolist() == [[110.5, 230.5]]
    assert found.points[1].tolist() == [[0.5, 0.5]]
    assert found.scores[0].item() == pytest.approx(1 / (1 + 3135 * np.exp(-20.0)), rel=1e-5)
