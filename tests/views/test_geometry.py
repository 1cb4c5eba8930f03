"""Crop geometry: hand-made cases, and the mistakes that other implementations made."""

from __future__ import annotations

import pytest
import torch
from references import geometry as reference
from torch import Tensor

from clove_ssl.views.geometry import CropGeometry, cell_centers, match_cells


def crop(
    *boxes: tuple[float, float, float, float],
    image_size: tuple[int, int] = (300, 400),
    flipped: bool = False,
    flipped_vertically: bool = False,
) -> CropGeometry:
    count = len(boxes)
    return CropGeometry(
        boxes=torch.tensor(boxes, dtype=torch.float64),
        flipped=torch.full((count,), flipped),
        flipped_vertically=torch.full((count,), flipped_vertically),
        image_size=torch.tensor([image_size] * count),
    )


@pytest.fixture
def random_boxes() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return tuple(torch.rand(6, 4, generator=g, dtype=torch.float64) for _ in range(2))


@pytest.mark.parametrize("grids", [((7, 7), (7, 7)), ((3, 3), (7, 7)), ((2, 5), (4, 1))])
@pytest.mark.parametrize("threshold", [0.3, 0.7, 2.0])
def test_matching_is_the_distance_rule_spelled_out(random_boxes, grids, threshold) -> None:
    mask = match_cells(*random_boxes, *grids, threshold)
    for box_a, box_b, one in zip(*(boxes.tolist() for boxes in random_boxes), mask, strict=True):
        distances = reference.relative_distances(box_a, box_b, *grids)
        assert torch.equal(one, torch.tensor(distances, dtype=torch.float64) < threshold)


def test_the_query_unit_counts_in_diagonals_of_the_first_view() -> None:
    small = torch.tensor([[0.0, 0.0, 3.0, 4.0]])  # one cell, diagonal 5, centre (1.5, 2)
    large = torch.tensor([[4.5, 0.0, 10.5, 4.0]])  # one cell, diagonal above 7, centre 6 away
    assert not match_cells(small, large, (1, 1), (1, 1), 1.1, unit="query")
    assert match_cells(small, large, (1, 1), (1, 1), 1.1, unit="larger")
    assert match_cells(large, small, (1, 1), (1, 1), 1.1, unit="query")


def test_a_distance_of_exactly_the_threshold_does_not_match() -> None:
    a = torch.tensor([[0.0, 0.0, 3.0, 4.0]])
    b = a + torch.tensor([5.0, 0.0, 5.0, 0.0])  # one diagonal to the right
    assert not match_cells(a, b, (1, 1), (1, 1), 1.0)
    assert match_cells(a, b, (1, 1), (1, 1), 1.001)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_matched_in_at_least_single_precision(dtype: torch.dtype) -> None:
    boxes = torch.tensor([[0.25, 0.5, 0.75, 1.0]], dtype=dtype)
    expected = match_cells(boxes.double(), boxes.double(), (32, 32), (32, 32), 0.7)
    assert torch.equal(match_cells(boxes, boxes, (32, 32), (32, 32), 0.7), expected)


def test_a_negative_threshold_is_refused() -> None:
    box = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    with pytest.raises(ValueError, match="negative"):
        match_cells(box, box, (1, 1), (1, 1), -0.7)


def test_matching_compiles_as_one_graph(random_boxes) -> None:
    compiled = torch.compile(match_cells, backend="eager", fullgraph=True)
    expected = match_cells(*random_boxes, (3, 3), (7, 7), 0.7)
    assert torch.equal(compiled(*random_boxes, (3, 3), (7, 7), 0.7), expected)


def test_mirrored_identical_crops_give_the_mirrored_identity() -> None:
    """traps F.1: the flip is in the corners, once."""
    box = (40.0, 30.0, 240.0, 230.0)
    plain = crop(box).signed_boxes("pixel")
    mirrored = crop(box, flipped=True).signed_boxes("pixel")
    identity = torch.eye(49, dtype=torch.bool).view(7, 7, 7, 7)
    mask = match_cells(plain, mirrored, (7, 7), (7, 7)).view(7, 7, 7, 7)
    assert torch.equal(mask, identity.flip(3))
    assert torch.equal(match_cells(mirrored, mirrored, (7, 7), (7, 7)).view(7, 7, 7, 7), identity)


def test_upside_down_identical_crops_give_the_identity_with_rows_reversed() -> None:
    """traps F.1, for the other axis."""
    box = (40.0, 30.0, 240.0, 230.0)
    plain = crop(box).signed_boxes("pixel")
    upside_down = crop(box, flipped_vertically=True).signed_boxes("pixel")
    mask = match_cells(plain, upside_down, (7, 7), (7, 7)).view(7, 7, 7, 7)
    assert torch.equal(mask, torch.eye(49, dtype=torch.bool).view(7, 7, 7, 7).flip(2))


def test_centres_sit_half_a_cell_inside_the_crop() -> None:
    """traps F.2: neither at the corners of cells nor spread to the ends of the crop."""
    centers = cell_centers(torch.tensor([[10.0, 20.0, 18.0, 22.0]]), (1, 4))
    assert centers.tolist() == [[[11.0, 21.0], [13.0, 21.0], [15.0, 21.0], [17.0, 21.0]]]


def test_a_crop_twice_as_large_has_its_centres_between_those_of_the_smaller() -> None:
    """traps F.2: with integer indices as centres, crops of two sizes shift against each other."""
    small = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    large = torch.tensor([[0.0, 0.0, 8.0, 8.0]])
    mask = match_cells(small, large, (4, 4), (4, 4), 0.3).view(4, 4, 4, 4)
    assert mask[:2, :2, 0, 0].all()  # the four small cells inside a large one, none else
    assert mask[:, :, 0, 0].sum() == 4


def test_x_comes_before_y_and_rows_before_columns() -> None:
    """traps F.3."""
    centers = cell_centers(torch.tensor([[0.0, 100.0, 30.0, 120.0]]), (2, 3)).view(2, 3, 2)
    assert centers[0, :, 0].tolist() == [5.0, 15.0, 25.0]
    assert centers[:, 0, 1].tolist() == [105.0, 115.0]


def test_per_axis_corners_are_the_outermost_pixels_of_each_axis() -> None:
    """traps F.3: inclusive corners over W - 1 and H - 1, not edges over W and H."""
    whole = crop((0, 0, 400, 300)).signed_boxes("per-axis")
    assert whole.tolist() == [[0.0, 0.0, 1.0, 1.0]]
    one = crop((399, 0, 400, 1), flipped=True, flipped_vertically=True).signed_boxes("per-axis")
    assert one.tolist() == [[1.0, 0.0, 1.0, 0.0]]


def test_pixel_boxes_are_the_edges_of_the_crop() -> None:
    assert crop((10, 20, 50, 90)).signed_boxes("pixel").tolist() == [[10, 20, 50, 90]]
    flipped = crop((10, 20, 50, 90), flipped=True, flipped_vertically=True)
    assert flipped.signed_boxes("pixel").tolist() == [[50, 90, 10, 20]]


def test_an_image_one_pixel_wide_has_finite_coordinates() -> None:
    boxes = crop((0, 3, 1, 9), image_size=(12, 1)).signed_boxes("per-axis")
    torch.testing.assert_close(boxes, torch.tensor([[0, 3 / 11, 0, 8 / 11]], dtype=torch.float64))


def test_geometry_moves_between_devices_in_one_piece() -> None:
    moved = crop((0, 0, 400, 300)).to("meta")
    tensors = [moved.boxes, moved.flipped, moved.flipped_vertically, moved.image_size]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
