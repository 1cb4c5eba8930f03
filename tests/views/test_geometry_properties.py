"""Properties of crop geometry that hold for every crop, not just for three."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from references import geometry as reference
from torch import Tensor

from clove_ssl.views.geometry import CropGeometry, cell_centers, match_cells

grids = st.tuples(st.integers(1, 9), st.integers(1, 9))
thresholds = st.floats(0.05, 3)


@st.composite
def crops(draw: st.DrawFn) -> CropGeometry:
    width, height = draw(st.integers(2, 900)), draw(st.integers(2, 900))
    x0, y0 = draw(st.integers(0, width - 2)), draw(st.integers(0, height - 2))
    x1, y1 = draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))
    return CropGeometry(
        boxes=torch.tensor([[x0, y0, x1, y1]], dtype=torch.float64),
        flipped=torch.tensor([draw(st.booleans())]),
        flipped_vertically=torch.tensor([draw(st.booleans())]),
        image_size=torch.tensor([[height, width]]),
    )


boxes = crops().map(lambda crop: crop.signed_boxes("pixel"))


def assume_no_pair_at_the_limit(a: Tensor, b: Tensor, grid_a, grid_b, threshold: float) -> None:
    """Whether a distance equal to the limit matches may hang on rounding."""
    distances = reference.relative_distances(a[0].tolist(), b[0].tolist(), grid_a, grid_b)
    assume(all(abs(each - threshold) > 1e-9 for row in distances for each in row))


@given(boxes, boxes, grids, grids, thresholds)
def test_matching_is_symmetric_to_the_last_bit(a, b, grid_a, grid_b, threshold) -> None:
    for dtype in (torch.float64, torch.float32):
        there = match_cells(a.to(dtype), b.to(dtype), grid_a, grid_b, threshold)
        back = match_cells(b.to(dtype), a.to(dtype), grid_b, grid_a, threshold)
        assert torch.equal(there, back.mT)


@given(boxes, boxes, grids, grids, thresholds)
def test_matching_is_the_rule_spelled_out(a, b, grid_a, grid_b, threshold) -> None:
    assume_no_pair_at_the_limit(a, b, grid_a, grid_b, threshold)
    distances = reference.relative_distances(a[0].tolist(), b[0].tolist(), grid_a, grid_b)
    expected = torch.tensor(distances, dtype=torch.float64) < threshold
    assert torch.equal(match_cells(a, b, grid_a, grid_b, threshold)[0], expected)


@given(boxes, boxes, grids, grids, thresholds, st.floats(-500, 500), st.floats(-500, 500))
def test_matching_does_not_depend_on_the_origin(a, b, grid_a, grid_b, threshold, x, y) -> None:
    assume_no_pair_at_the_limit(a, b, grid_a, grid_b, threshold)
    shift = torch.tensor([x, y, x, y], dtype=torch.float64)
    moved = match_cells(a + shift, b + shift, grid_a, grid_b, threshold)
    assert torch.equal(moved, match_cells(a, b, grid_a, grid_b, threshold))


@given(boxes, boxes, grids, grids, thresholds, st.floats(1e-3, 1e3))
def test_matching_does_not_depend_on_the_unit(a, b, grid_a, grid_b, threshold, scale) -> None:
    assume_no_pair_at_the_limit(a, b, grid_a, grid_b, threshold)
    scaled = match_cells(a * scale, b * scale, grid_a, grid_b, threshold)
    assert torch.equal(scaled, match_cells(a, b, grid_a, grid_b, threshold))


@given(boxes, boxes, grids, grids, thresholds)
def test_a_larger_threshold_only_adds_matches(a, b, grid_a, grid_b, threshold) -> None:
    fewer = match_cells(a, b, grid_a, grid_b, threshold)
    more = match_cells(a, b, grid_a, grid_b, threshold * 1.1)
    assert (more | ~fewer).all()


@given(boxes, grids)
def test_a_view_matches_itself_on_the_diagonal(a, grid) -> None:
    assert match_cells(a, a, grid, grid, 0.05).diagonal(dim1=1, dim2=2).all()


@given(crops(), grids)
def test_centres_lie_inside_the_crop(crop: CropGeometry, grid) -> None:
    centers = cell_centers(crop.signed_boxes("pixel"), grid)
    assert (centers > crop.boxes[:, None, :2]).all()
    assert (centers < crop.boxes[:, None, 2:]).all()


def flip(crop: CropGeometry) -> CropGeometry:
    return CropGeometry(crop.boxes, ~crop.flipped, crop.flipped_vertically, crop.image_size)


@given(crops(), grids, st.sampled_from(["pixel", "per-axis"]))
def test_a_flip_only_reverses_columns(crop: CropGeometry, grid, coordinates) -> None:
    plain = cell_centers(crop.signed_boxes(coordinates), grid).unflatten(1, grid)
    mirrored = cell_centers(flip(crop).signed_boxes(coordinates), grid).unflatten(1, grid)
    torch.testing.assert_close(mirrored.flip(2), plain)


@given(crops(), st.sampled_from(["pixel", "per-axis"]))
def test_two_flips_are_none(crop: CropGeometry, coordinates) -> None:
    twice = flip(flip(crop)).signed_boxes(coordinates)
    assert torch.equal(twice, crop.signed_boxes(coordinates))


@given(crops())
def test_per_axis_boxes_are_those_of_the_released_formula(crop: CropGeometry) -> None:
    x0, y0, x1, y1 = (int(edge) for edge in crop.boxes[0])
    height, width = crop.image_size[0].tolist()
    expected = reference.per_axis_box(
        (y0, x0, y1 - y0, x1 - x0),
        height=height,
        width=width,
        flipped=bool(crop.flipped),
        flipped_vertically=bool(crop.flipped_vertically),
    )
    torch.testing.assert_close(
        crop.signed_boxes("per-axis"), torch.tensor([expected], dtype=torch.float64)
    )
