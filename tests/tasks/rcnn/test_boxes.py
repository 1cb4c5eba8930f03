"""Anchors, boxes, pooling and resizing where there is little or nothing to work on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clove_ssl.tasks.rcnn.boxes import (
    RPN_WEIGHTS,
    clip_boxes,
    clip_to_images,
    decode_boxes,
    encode_boxes,
    has_area,
    image_borders,
    pairwise_iou,
)
from clove_ssl.tasks.rcnn.pixels import resize_image, resized_shape
from clove_ssl.tasks.rcnn.proposals.rpn import AnchorLayout, cell_corners
from clove_ssl.tasks.rcnn.regions.pooling import (
    LEGACY,
    assign_levels,
    batched_regions,
    pool_pyramid,
    pool_regions,
)

STRIDES = (4, 8, 16, 32)
NONE = torch.zeros(0, 4)
POINT = torch.tensor([[8.0, 8.0, 8.0, 8.0]])


def pyramid(images: int = 2) -> list[torch.Tensor]:
    return [
        torch.ones(images, 3, 64 // stride, 64 // stride, requires_grad=True) for stride in STRIDES
    ]


def test_an_anchor_has_the_area_of_its_size_and_the_ratio_of_height_to_width() -> None:
    sides = torch.tensor(cell_corners([10.0], [0.25, 4.0]))
    assert (sides[:, 2:] - sides[:, :2]).tolist() == [[20.0, 5.0], [5.0, 20.0]]


def test_a_map_without_cells_has_no_anchors() -> None:
    layout = AnchorLayout(strides=(4, 8), sizes=((32,), (64,)), ratios=(0.5, 1.0, 2.0))
    grids = layout.grids([(0, 3), (2, 2)])
    assert [len(grid) for grid in grids] == [0, 12]


def test_a_layout_needs_sizes_for_every_stride() -> None:
    with pytest.raises(ValueError, match="2 strides for 1 lists of sizes"):
        AnchorLayout(strides=(4, 8), sizes=((32,),), ratios=(1.0,))


def test_boxes_without_area_overlap_with_nothing() -> None:
    boxes = torch.tensor([[8.0, 8.0, 8.0, 8.0], [0.0, 0.0, 16.0, 16.0]])
    assert pairwise_iou(boxes, boxes).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_boxes_that_only_touch_overlap_with_nothing() -> None:
    left, right = torch.tensor([[0.0, 0.0, 4.0, 4.0]]), torch.tensor([[4.0, 0.0, 8.0, 4.0]])
    assert pairwise_iou(left, right).item() == 0


def test_no_boxes_are_no_problem() -> None:
    assert encode_boxes(NONE, NONE, weights=RPN_WEIGHTS).shape == (0, 4)
    assert decode_boxes(NONE, torch.zeros(0, 12), weights=RPN_WEIGHTS).shape == (0, 12)
    assert pairwise_iou(NONE, POINT).shape == (0, 1)
    assert clip_boxes(NONE, (5, 5)).shape == (0, 4)
    assert has_area(NONE).shape == (0,)


def test_offsets_of_a_box_without_area_are_not_finite() -> None:
    assert not encode_boxes(POINT, POINT, weights=RPN_WEIGHTS).isfinite().any()


def test_boxes_of_several_images_are_clipped_like_those_of_each() -> None:
    boxes = torch.tensor([[-5.0, 2.0, 30.0, 40.0], [1.0, -2.0, 9.0, 8.0]]).expand(2, 2, 4)
    sizes = [(10, 20), (35, 5)]
    clipped = clip_to_images(boxes, image_borders(sizes, boxes))
    for mine, alone, size in zip(clipped, boxes, sizes, strict=True):
        assert torch.equal(mine, clip_boxes(alone, size))


def test_boxes_in_half_precision_are_moved_in_single_precision() -> None:
    box = torch.tensor([[1000.0, 1000.0, 1010.0, 1010.0]])
    moved = decode_boxes(box, torch.full((1, 4), 0.01, dtype=torch.float16), weights=RPN_WEIGHTS)
    assert moved.dtype == torch.float32
    expected = decode_boxes(box.double(), torch.full((1, 4), 0.01).double(), weights=RPN_WEIGHTS)
    torch.testing.assert_close(moved.double(), expected, rtol=0, atol=1e-3)


def test_a_huge_offset_enlarges_a_side_by_no_more_than_62_and_a_half() -> None:
    box = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    moved = decode_boxes(box, torch.tensor([[0.0, 0.0, 1e6, -1e6]]), weights=RPN_WEIGHTS)
    torch.testing.assert_close(moved, torch.tensor([[-492.0, 8.0, 508.0, 8.0]]))


def test_clipping_moves_boxes_outside_onto_the_border() -> None:
    boxes = torch.tensor([[-9.0, -8.0, -1.0, -2.0], [3.0, 4.0, 99.0, 99.0]])
    assert clip_boxes(boxes, (10, 20)).tolist() == [[0, 0, 0, 0], [3, 4, 20, 10]]
    assert has_area(clip_boxes(boxes, (10, 20))).tolist() == [False, True]


def test_a_region_without_area_belongs_to_the_finest_level() -> None:
    assert assign_levels(POINT).tolist() == [0]
    assert assign_levels(NONE).shape == (0,)


def test_a_region_without_area_pools_to_zero_only_when_aligned() -> None:
    features = pyramid(1)[0]
    aligned = pool_regions(features, batched_regions([POINT]), stride=4, size=7)
    legacy = pool_regions(features, batched_regions([POINT]), stride=4, size=7, rule=LEGACY)
    assert aligned.abs().max() == 0
    assert legacy.min() == 1


@pytest.mark.parametrize("boxes", [[NONE, NONE], [NONE, POINT + torch.tensor([0, 0, 4, 4])]])
def test_images_without_regions_pool_to_nothing_but_keep_the_graph(boxes) -> None:
    maps = pyramid()
    pooled = pool_pyramid(maps, batched_regions(boxes), strides=STRIDES, size=7)
    assert pooled.shape == (sum(map(len, boxes)), 3, 7, 7)
    pooled.sum().backward()
    assert all(each.grad is not None for each in maps)


def test_maps_in_half_precision_are_pooled_with_boxes_in_single_precision() -> None:
    ramp = (torch.arange(256) - 226).expand(1, 1, 256, 256)
    regions = torch.tensor([[0.0, 898.0, 898.0, 914.0, 914.0]])  # bf16 would make it 896 and 912
    pooled = pool_regions(ramp.bfloat16(), regions, stride=4, size=1)
    assert pooled.dtype == torch.bfloat16
    assert pooled.item() == (898 + 914) / 2 / 4 - 0.5 - 226


def test_regions_keep_the_order_of_their_images_over_all_levels() -> None:
    maps = [torch.full((2, 1, 64, 64), float(level)) for level in range(4)]
    maps = [each + torch.tensor([0.0, 10.0]).view(2, 1, 1, 1) for each in maps]
    big, small = [0.0, 0.0, 230.0, 230.0], [0.0, 0.0, 20.0, 20.0]
    boxes = [torch.tensor([big, small]), torch.tensor([small, big])]
    pooled = pool_pyramid(maps, batched_regions(boxes), strides=STRIDES, size=1)
    assert pooled.flatten().tolist() == [2.0, 0.0, 10.0, 12.0]


def test_an_image_of_the_right_size_is_not_touched() -> None:
    image = np.zeros((4, 6, 3), dtype=np.uint8)
    assert resize_image(image, (4, 6)) is image


def test_a_grey_image_stays_grey() -> None:
    assert resize_image(np.zeros((4, 6), dtype=np.uint8), (8, 12)).shape == (8, 12)


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(ValueError, match="0 x 5 pixels"):
        resized_shape(0, 5, short_side=800, longest=1333)
