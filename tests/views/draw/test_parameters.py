"""Random view parameters: exact against slow loops, and in distribution.

The table of matching statistics was simulated with the sampler of CLoVE's
released code. All draws have fixed seeds, so a test that passes once passes
always; tolerances are about four standard errors.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from references import geometry as reference
from torch import Tensor
from torchvision.transforms import RandomResizedCrop

from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.geometry import match_cells

SPECS = ViewsConfig().specs()
GLOBAL_0, GLOBAL_1, LOCAL = 0, 1, 2  # of SPECS


def draw(
    images: int, specs: tuple[ViewSpec, ...] = SPECS, *, height: int = 375, width: int = 500
) -> ViewParameters:
    uniforms = np.random.default_rng(0).random((images, len(specs), UNIFORMS_PER_VIEW))
    return draw_views(uniforms, np.full(images, height), np.full(images, width), specs)


def assert_same(a: ViewParameters, b: ViewParameters) -> None:
    for each in fields(ViewParameters):
        np.testing.assert_array_equal(getattr(a, each.name), getattr(b, each.name))


# --- one row of numbers, one view


def test_a_view_depends_on_its_own_row_only() -> None:
    uniforms = np.random.default_rng(0).random((5, len(SPECS), UNIFORMS_PER_VIEW))
    heights, widths = np.array([375, 500, 30, 300, 1]), np.array([500, 375, 900, 800, 1])
    together = draw_views(uniforms, heights, widths, SPECS)
    for image in range(5):
        alone = draw_views(uniforms[image], heights[image], widths[image], SPECS)
        assert_same(alone, together.image(image))
    first_views = draw_views(uniforms[:, :3], heights, widths, SPECS[:3])
    np.testing.assert_array_equal(first_views.crop, together.crop[:, :3])
    np.testing.assert_array_equal(first_views.factors, together.factors[:, :3])


def test_every_number_of_a_row_is_used_and_none_twice() -> None:
    """A number shared by two decisions would tie them together."""
    images = 400
    specs = ViewsConfig(
        vertical_flip_probability=0.5, global_blur=(0.5,), global_solarize=(0.5,)
    ).specs()[:1]
    uniforms = np.random.default_rng(0).random((images, 1, UNIFORMS_PER_VIEW))
    size = np.full(images, 50), np.full(images, 200)  # so wide that all attempts are needed
    before = draw_views(uniforms, *size, specs)
    for place in range(UNIFORMS_PER_VIEW):
        changed = uniforms.copy()
        changed[..., place] = (changed[..., place] + 0.5) % 1
        after = draw_views(changed, *size, specs)
        moved = [
            each.name
            for each in fields(ViewParameters)
            if not np.array_equal(getattr(before, each.name), getattr(after, each.name))
        ]
        jitter_switch = ["factors", "order"]
        assert len(moved) == 1 or moved == jitter_switch, (place, moved)


def test_uniforms_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="8 views"):
        draw_views(np.zeros((2, 3, UNIFORMS_PER_VIEW)), [9, 9], [9, 9], SPECS)


# --- crops


@given(
    st.integers(1, 700),
    st.integers(1, 700),
    st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)).map(sorted),
    st.integers(0, 10_000),
)
def test_crops_are_those_of_the_loop_and_lie_in_the_image(
    height, width, scale, ratio, seed
) -> None:
    spec = replace(SPECS[0], scale=tuple(scale), ratio=tuple(ratio))
    row = np.random.default_rng(seed).random(UNIFORMS_PER_VIEW)
    crop = draw_views(row[None], height, width, (spec,)).crop[0, 0].tolist()
    expected = reference.random_resized_crop(
        area_draws=row[:10].tolist(),
        ratio_draws=row[10:20].tolist(),
        place_draws=(float(row[20]), float(row[21])),
        height=height,
        width=width,
        scale=spec.scale,
        ratio=spec.ratio,
    )
    top, left, h, w = crop
    if min(expected[2:]) > 0:  # of an image of one pixel the loop may take none
        assert crop == [*expected]
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h >= 1
    assert w >= 1


@pytest.mark.parametrize("value", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_uniforms_stay_in_range(value: float) -> None:
    drawn = draw_views(np.full((1, 8, UNIFORMS_PER_VIEW), value), 375, 500, SPECS)
    top, left, height, width = np.moveaxis(drawn.crop, -1, 0)
    assert (top >= 0).all()
    assert (top + height <= 375).all()
    assert (left >= 0).all()
    assert (left + width <= 500).all()


def kolmogorov_smirnov(a: np.ndarray, b: np.ndarray) -> float:
    """Largest gap between two empirical distributions, 1.95 or more once in a thousand cases."""
    values = np.union1d(a, b)
    gaps = np.searchsorted(np.sort(a), values, "right") / len(a)
    gaps -= np.searchsorted(np.sort(b), values, "right") / len(b)
    return float(np.abs(gaps).max() * np.sqrt(len(a) * len(b) / (len(a) + len(b))))


@pytest.mark.parametrize(("height", "width"), [(375, 500), (300, 800), (90, 400)])
@pytest.mark.parametrize("view", [GLOBAL_0, LOCAL])
def test_crops_are_distributed_as_torchvision_draws_them(height, width, view) -> None:
    spec, images = SPECS[view], 3000
    torch.manual_seed(0)
    canvas = torch.empty(1, height, width)
    theirs = np.array(
        [
            RandomResizedCrop.get_params(canvas, list(spec.scale), list(spec.ratio))
            for _ in range(images)
        ]
    )
    ours = draw(images, (spec,), height=height, width=width).crop[:, 0]
    for column in range(4):
        assert kolmogorov_smirnov(ours[:, column], theirs[:, column]) < 1.95
    areas = ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]
    assert kolmogorov_smirnov(*areas) < 1.95
    assert kolmogorov_smirnov(ours[:, 3] / ours[:, 2], theirs[:, 3] / theirs[:, 2]) < 1.95


def test_geometry_is_made_of_the_pixels_that_are_cut_out() -> None:
    """traps F.4: also where rounding or the central crop decided."""
    drawn = draw(50, height=60, width=1200)  # most crops here are the central one
    geometry = drawn.geometry(GLOBAL_0)
    top, left, height, width = drawn.crop[:, GLOBAL_0].T
    expected = np.stack([left, top, left + width, top + height], axis=1)
    np.testing.assert_array_equal(geometry.boxes.numpy(), expected)
    np.testing.assert_array_equal(geometry.flipped.numpy(), drawn.flip[:, GLOBAL_0])
    np.testing.assert_array_equal(
        geometry.flipped_vertically.numpy(), drawn.vertical_flip[:, GLOBAL_0]
    )
    assert geometry.image_size.tolist() == [[60, 1200]] * 50


# --- everything else


def assert_share(happens: np.ndarray, probability: float) -> None:
    error = 4 * np.sqrt(probability * (1 - probability) / happens.size)
    assert abs(happens.mean() - probability) <= error


def test_operations_happen_as_often_as_they_should() -> None:
    specs = ViewsConfig(vertical_flip_probability=0.3).specs()
    drawn = draw(6000, specs)
    for view in (GLOBAL_0, GLOBAL_1, LOCAL):
        assert_share(drawn.flip[:, view], 0.5)
        assert_share(drawn.vertical_flip[:, view], 0.3)
        assert_share((drawn.factors[:, view] != [1, 1, 1, 0]).all(axis=-1), 0.8)
        assert_share(drawn.grey[:, view], 0.2)
        assert_share(drawn.sigma[:, view] > 0, specs[view].blur_probability)
        assert_share(drawn.solarize[:, view], specs[view].solarize_probability)
    assert [specs[view].blur_probability for view in (0, 1, 2)] == [1.0, 0.1, 0.5]
    assert [specs[view].solarize_probability for view in (0, 1, 2)] == [0.0, 0.2, 0.0]


def assert_uniform(values: np.ndarray, low: float, high: float) -> None:
    grid = (np.arange(values.size) + 0.5) / values.size * (high - low) + low
    assert kolmogorov_smirnov(values, grid) < 1.95
    assert values.min() >= low
    assert values.max() <= high


def test_strengths_are_uniform_in_their_ranges() -> None:
    spec = replace(SPECS[0], jitter_probability=1.0, jitter_strength=(0.4, 1.5, 0.2, 0.1))
    drawn = draw(4000, (spec,))
    spans = [(0.6, 1.4), (0.0, 2.5), (0.8, 1.2), (-0.1, 0.1)]  # contrast stops at 0, not at -0.5
    for place, (low, high) in enumerate(spans):
        assert_uniform(drawn.factors[:, 0, place], low, high)
    assert_uniform(drawn.sigma[:, 0], 0.1, 2.0)


def test_all_orders_of_the_jitter_are_equally_likely() -> None:
    spec = replace(SPECS[0], jitter_probability=1.0)
    orders, counts = np.unique(draw(24_000, (spec,)).order[:, 0], axis=0, return_counts=True)
    assert len(orders) == 24
    assert np.abs(counts - 1000).max() < 4 * np.sqrt(1000)


def test_a_view_that_is_not_jittered_has_neutral_factors() -> None:
    drawn = draw(10, (replace(SPECS[0], jitter_probability=0.0),))
    assert (drawn.factors == [1, 1, 1, 0]).all()
    assert (drawn.order == [0, 1, 2, 3]).all()


# --- what matching finds in such crops


def masks(height: int, width: int, *, query: int, threshold: float, coordinates: str) -> Tensor:
    drawn = draw(4000, SPECS[:3], height=height, width=width)
    key = GLOBAL_0
    grids = {GLOBAL_0: (7, 7), GLOBAL_1: (7, 7), LOCAL: (3, 3)}
    return match_cells(
        drawn.geometry(query).signed_boxes(coordinates),
        drawn.geometry(key).signed_boxes(coordinates),
        grids[query],
        grids[key],
        threshold,
    )


@pytest.mark.parametrize(
    ("width", "height", "query", "threshold", "pairs", "per_query", "queries", "without"),
    [
        (500, 375, GLOBAL_1, 0.7, 122, 3.2, 0.78, 0.004),
        (500, 375, LOCAL, 0.7, 44, 5.7, 0.86, 0.027),
        (500, 500, GLOBAL_1, 0.7, 127, 3.2, 0.81, 0.001),
        (500, 500, LOCAL, 0.7, 42, 5.3, 0.89, 0.013),
        (800, 300, GLOBAL_1, 0.7, 99, 3.5, 0.57, 0.147),
        (800, 300, LOCAL, 0.7, 56, 8.9, 0.71, 0.161),
        (500, 375, GLOBAL_1, 0.5, 64, 1.8, 0.72, 0.005),
        (500, 375, LOCAL, 0.5, 23, 3.2, 0.80, 0.037),
        (500, 375, GLOBAL_1, 0.9, 200, 5.0, 0.82, 0.002),
        (500, 375, LOCAL, 0.9, 70, 8.6, 0.90, 0.017),
    ],
)
def test_matches_are_as_frequent_as_in_the_released_code(
    width, height, query, threshold, pairs, per_query, queries, without
) -> None:
    mask = masks(height, width, query=query, threshold=threshold, coordinates="per-axis")
    per_image = mask.sum(dim=(1, 2)).double()
    matched = mask.any(dim=2)
    standard_error = per_image.std().item() / len(mask) ** 0.5
    # Both sides are samples of 4000, and the table is rounded.
    assert per_image.mean().item() == pytest.approx(pairs, abs=0.5 + 4 * 2**0.5 * standard_error)
    assert (per_image.sum() / matched.sum()).item() == pytest.approx(per_query, abs=0.2)
    assert matched.double().mean().item() == pytest.approx(queries, abs=0.03)
    error = 4 * (2 * without * (1 - without) / len(mask)) ** 0.5
    assert (per_image == 0).double().mean().item() == pytest.approx(without, abs=error + 0.001)


def test_ten_negatives_always_remain_at_the_default_threshold() -> None:
    for query in (GLOBAL_1, LOCAL):
        mask = masks(375, 500, query=query, threshold=0.7, coordinates="per-axis")
        assert (~mask).sum(dim=2).min() >= 18


@pytest.mark.parametrize(
    ("width", "height", "share"), [(500, 375, 0.17), (600, 400, 0.23), (600, 300, 0.36)]
)
def test_per_axis_and_pixel_coordinates_disagree_on_oblong_images(width, height, share) -> None:
    per_axis = masks(height, width, query=GLOBAL_1, threshold=0.7, coordinates="per-axis")
    pixel = masks(height, width, query=GLOBAL_1, threshold=0.7, coordinates="pixel")
    disagreement = (per_axis ^ pixel).sum() / (per_axis | pixel).sum()
    assert disagreement.item() == pytest.approx(share, abs=0.03)


def test_per_axis_and_pixel_coordinates_agree_on_squares() -> None:
    per_axis = masks(500, 500, query=GLOBAL_1, threshold=0.7, coordinates="per-axis")
    pixel = masks(500, 500, query=GLOBAL_1, threshold=0.7, coordinates="pixel")
    assert (per_axis ^ pixel).sum() / (per_axis | pixel).sum() < 0.01
