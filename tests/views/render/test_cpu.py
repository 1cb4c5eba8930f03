"""The CPU renderer against the Pillow pipeline it stands for, and against formulas.

Pillow rounds after every operation (blends round down, hue is an 8-bit number);
the renderer rounds twice: after resizing and at the end. The tolerances state
what that amounts to, in grey levels.
"""

from __future__ import annotations

import colorsys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from references import pil_views
from torch import Tensor

from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import ViewParameters, draw_views
from clove_ssl.views.render.blurring import blur, blur_matrix
from clove_ssl.views.render.cpu import render_unrounded, render_views
from clove_ssl.views.render.photometry import adjust_hue_, luma, solarize_

SPECS = ViewsConfig().specs()
QUIET = {
    "flip_probability": 0.0,
    "jitter_probability": 0.0,
    "grey_probability": 0.0,
    "blur_probability": 0.0,
    "solarize_probability": 0.0,
}


def only(spec: ViewSpec, **changes: object) -> ViewSpec:
    """A view with these operations alone."""
    return replace(spec, **(QUIET | changes))


def made_up_photo(seed: int = 0, *, height: int = 375, width: int = 500) -> Tensor:
    """Soft colourful shapes with grain, in the memory layout of a decoder."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    soft = coarse.resize((width, height), Image.Resampling.BICUBIC)
    grain = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    return torch.from_numpy(np.array(Image.blend(soft, grain, 0.2))).permute(2, 0, 1)


def draw(image: Tensor, specs: tuple[ViewSpec, ...], seed: int = 0) -> ViewParameters:
    uniforms = np.random.default_rng(seed).random((1, len(specs), UNIFORMS_PER_VIEW))
    return draw_views(uniforms, image.shape[1], image.shape[2], specs)


def assert_like_pillow(
    image: Tensor,
    specs: tuple[ViewSpec, ...],
    *,
    mean: float,
    nearly_all: float,
    largest: float,
    seed: int = 0,
) -> None:
    """Bound the mean, the 99th percentile and the largest difference of every view."""
    parameters = draw(image, specs, seed)
    theirs = pil_views.render_views(image, parameters, specs)
    for view, (a, b) in enumerate(zip(theirs, render_views(image, parameters, specs), strict=True)):
        difference = (a.float() - b.float()).abs().numpy()
        found = difference.mean(), np.percentile(difference, 99), difference.max()
        within = np.array(found) <= [mean, nearly_all, largest]
        assert within.all(), (found, view, parameters)


# --- view by view against Pillow


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]], ids=["global", "local"])
@pytest.mark.parametrize(
    ("changes", "mean", "nearly_all", "largest"),
    [
        pytest.param({}, 0.3, 1, 6, id="bicubic"),
        pytest.param({"interpolation": "bilinear"}, 0.3, 1, 1, id="bilinear"),
        pytest.param({"jitter_strength": (0.4, 0, 0, 0)}, 0.8, 2, 7, id="brightness"),
        pytest.param({"jitter_strength": (0, 0.4, 0, 0)}, 0.8, 2, 7, id="contrast"),
        pytest.param({"jitter_strength": (0, 0, 0.2, 0)}, 0.8, 2, 7, id="saturation"),
        pytest.param({"jitter_strength": (0, 0, 0, 0.1)}, 1.2, 7, 12, id="hue"),
        pytest.param({"jitter_strength": (0, 0, 0, 0.5)}, 1.6, 9, 15, id="any hue"),
        pytest.param({"grey_probability": 1.0}, 0.3, 1, 6, id="grey"),
        pytest.param({"blur_probability": 1.0}, 1.0, 2, 6, id="blur"),
        pytest.param({"solarize_probability": 1.0}, 0.3, 1, 6, id="solarize"),
    ],
)
def test_each_operation_is_pillows(spec, changes, mean, nearly_all, largest) -> None:
    jitter = float("jitter_strength" in changes)
    single = only(spec, jitter_probability=jitter, **changes)
    for seed in range(3):
        assert_like_pillow(
            made_up_photo(seed),
            (single, single),
            mean=mean,
            nearly_all=nearly_all,
            largest=largest,
            seed=seed,
        )


@pytest.mark.parametrize("size", [(375, 500), (60, 130), (700, 420)])
def test_whole_views_are_pillows_within_a_few_grey_levels(size: tuple[int, int]) -> None:
    for seed in range(3):
        image = made_up_photo(seed, height=size[0], width=size[1])
        assert_like_pillow(image, SPECS, mean=2.5, nearly_all=12, largest=24, seed=seed)


def test_views_of_photos_are_pillows_within_a_few_grey_levels(data_folder: Path) -> None:
    photos = sorted((data_folder / "coco" / "images" / "test").glob("*.jpg"))[:6]
    if not photos:
        pytest.skip("no photos in the data packs")
    for seed, path in enumerate(photos):
        image = pil_views.to_tensor(Image.open(path).convert("RGB"))
        assert_like_pillow(image, SPECS, mean=2.5, nearly_all=12, largest=24, seed=seed)


@pytest.mark.parametrize(("flip", "vertical"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_flips_are_exact(flip: float, vertical: float) -> None:
    image = made_up_photo()
    plain = only(SPECS[2])
    flipped = only(SPECS[2], flip_probability=flip, vertical_flip_probability=vertical)
    axes = [1] * bool(vertical) + [2] * bool(flip)
    before = render_views(image, draw(image, (plain,)), (plain,))[0]
    after = render_views(image, draw(image, (flipped,)), (flipped,))[0]
    assert torch.equal(after, before.flip(axes))


def test_a_view_shows_what_its_geometry_says() -> None:
    """Pixel values are their own coordinates, so the view can be read back."""
    y, x = torch.meshgrid(torch.arange(200), torch.arange(240), indexing="ij")
    image = torch.stack([x, y, torch.zeros_like(x)]).to(torch.uint8)
    spec = only(SPECS[2], flip_probability=0.5, vertical_flip_probability=0.5, scale=(0.3, 0.9))
    for seed in range(8):
        parameters = draw(image, (spec,), seed)
        x0, y0, x1, y1 = parameters.geometry(0).signed_boxes("pixel")[0].tolist()
        seen_x, seen_y, _ = render_unrounded(image, parameters, (spec,))[0]
        steps = (torch.arange(spec.size) + 0.5) / spec.size
        inside = slice(6, -6)  # resampling bends the ramp at the border of the crop
        expected_x, expected_y = x0 + (x1 - x0) * steps - 0.5, y0 + (y1 - y0) * steps - 0.5
        torch.testing.assert_close(seen_x[40, inside], expected_x[inside], rtol=0, atol=0.6)
        torch.testing.assert_close(seen_y[inside, 40], expected_y[inside], rtol=0, atol=0.6)


# --- single operations against formulas


@given(st.lists(st.integers(0, 255), min_size=3, max_size=3), st.floats(-0.5, 0.5))
def test_hue_is_turned_as_in_hsv(colour: list[int], turns: float) -> None:
    pixels = torch.tensor(colour, dtype=torch.float32).view(3, 1, 1)
    hue, saturation, value = colorsys.rgb_to_hsv(*(channel / 255 for channel in colour))
    expected = colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)
    turned = adjust_hue_(pixels, turns).flatten().tolist()
    assert turned == pytest.approx([255 * channel for channel in expected], abs=2e-3)


def three_box_passes(values: list[float], sigma: float) -> list[float]:
    """Three moving averages with one third of the variance each; edges repeat in every pass."""
    variance = sigma**2 / 3
    whole = 0
    while (whole + 1) * (whole + 2) / 3 <= variance:  # the variance of a box with one more pixel
        whole += 1
    sum_of_squares = sum(2 * k * k for k in range(1, whole + 1))
    ends = (variance * (2 * whole + 1) - sum_of_squares) / (2 * (whole + 1) ** 2 - 2 * variance)
    for _ in range(3):
        last = len(values) - 1
        averaged = []
        for i in range(len(values)):
            total = sum(values[min(max(i + k, 0), last)] for k in range(-whole, whole + 1))
            outer = values[max(i - whole - 1, 0)] + values[min(i + whole + 1, last)]
            averaged.append((total + ends * outer) / (2 * whole + 1 + 2 * ends))
        values = averaged
    return values


@given(st.floats(0.1, 6), st.integers(1, 70))
def test_the_pil_blur_is_three_box_passes_up_to_the_border(sigma: float, size: int) -> None:
    matrix = blur_matrix(sigma, size, kernel="pil")
    signal = np.random.default_rng(size).random(size) * 255
    expected = three_box_passes(signal.tolist(), sigma)
    np.testing.assert_allclose(matrix @ signal, expected, atol=1e-3)


@given(st.floats(0.1, 4), st.integers(1, 300), st.sampled_from(["pil", "gaussian"]))
def test_a_blur_keeps_brightness_and_spreads_a_point_by_sigma(sigma, size, kernel) -> None:
    matrix = blur_matrix(sigma, size, kernel=kernel).astype(np.float64)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    assert (matrix >= 0).all()
    if size > 120:
        offsets = np.arange(size) - size // 2
        variance = (matrix[size // 2] * offsets**2).sum()
        if kernel == "pil" or sigma > 1:  # sampled more finely, a Gaussian is not one any more
            assert variance == pytest.approx(sigma**2, rel=0.02)


def test_the_gaussian_blur_is_a_gaussian() -> None:
    row = blur_matrix(1.5, 101, kernel="gaussian")[50]
    expected = np.exp(-0.5 * (np.arange(-50, 51) / 1.5) ** 2)
    np.testing.assert_allclose(row, expected / expected.sum(), atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 224, 224), (1, 113, 40), (3, 5, 300)])
@pytest.mark.parametrize("kernel", ["pil", "gaussian"])
def test_blurring_in_blocks_is_blurring_with_the_whole_matrix(shape, kernel) -> None:
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255
    rows = torch.from_numpy(blur_matrix(1.7, shape[1], kernel=kernel))
    columns = torch.from_numpy(blur_matrix(1.7, shape[2], kernel=kernel))
    torch.testing.assert_close(
        blur(pixels, 1.7, kernel), rows @ pixels @ columns.T, rtol=0, atol=1e-3
    )


def test_a_view_can_be_blurred_with_a_true_gaussian() -> None:
    image = made_up_photo()
    spec = only(SPECS[2], blur_probability=1.0, blur_kernel="gaussian", blur_sigma=(1.0, 2.0))
    sharp = only(SPECS[2])
    parameters = draw(image, (spec,))
    matrix = torch.from_numpy(blur_matrix(parameters.sigma[0, 0], 96, kernel="gaussian"))
    plain = render_unrounded(image, draw(image, (sharp,)), (sharp,))[0]
    blurred = render_unrounded(image, parameters, (spec,))[0]
    torch.testing.assert_close(blurred, matrix @ plain @ matrix.T, rtol=0, atol=1e-3)


def test_solarisation_inverts_from_the_threshold_up() -> None:
    levels = torch.tensor([0.0, 59.0, 59.4, 59.6, 60.0, 200.0, 255.0]).view(1, 1, -1)
    solarized = solarize_(levels.clone(), 60).flatten().tolist()
    assert solarized == pytest.approx([0.0, 59.0, 59.4, 195.4, 195.0, 55.0, 0.0], abs=1e-4)


def test_luma_weighs_channels_as_the_eye_does() -> None:
    pixels = torch.eye(3).view(3, 1, 3) * 100
    assert luma(pixels).flatten().tolist() == pytest.approx([29.9, 58.7, 11.4])


# --- the renderer as a whole


def test_rounding_is_to_the_nearest_level() -> None:
    image = made_up_photo()
    parameters = draw(image, SPECS)
    exact = render_unrounded(image, parameters, SPECS)
    for levels, floats in zip(render_views(image, parameters, SPECS), exact, strict=True):
        assert levels.dtype == torch.uint8
        assert floats.min() >= -1e-3
        assert floats.max() <= 255 + 1e-3
        assert (levels.float() - floats).abs().max() <= 0.5 + 1e-3


def test_views_have_their_sizes_and_own_their_memory() -> None:
    image = made_up_photo()
    spec = only(SPECS[2], grey_probability=1.0)
    views = render_views(image, draw(image, (spec, *SPECS)), (spec, *SPECS))
    assert [tuple(view.shape) for view in views] == [(3, 96, 96)] + [(3, 224, 224)] * 2 + [
        (3, 96, 96)
    ] * 6
    assert all(view.is_contiguous() for view in views)


def test_the_source_image_is_left_alone() -> None:
    image = made_up_photo(height=96, width=96)
    spec = replace(SPECS[2], scale=(1.0, 1.0), ratio=(1.0, 1.0), jitter_probability=1.0)
    before = image.clone()
    render_views(image, draw(image, (spec,)), (spec,))
    assert torch.equal(image, before)


def test_the_memory_layout_of_the_source_does_not_matter() -> None:
    image = made_up_photo()
    parameters = draw(image, SPECS)
    planar = render_views(image.contiguous(), parameters, SPECS)
    for a, b in zip(planar, render_views(image, parameters, SPECS), strict=True):
        assert torch.equal(a, b)


def test_an_image_of_one_pixel_has_views_of_one_colour() -> None:
    image = torch.tensor([10, 20, 30], dtype=torch.uint8).view(3, 1, 1)
    spec = only(SPECS[2])
    view = render_views(image, draw(image, (spec,)), (spec,))[0]
    assert torch.equal(view, image.expand(3, 96, 96))


def test_parameters_of_another_image_are_refused() -> None:
    image = made_up_photo()
    with pytest.raises(ValueError, match="400 x 375"):
        render_views(image[:, :, :400], draw(image, SPECS), SPECS)
    with pytest.raises(ValueError, match="8 views"):
        render_views(image, draw(image, SPECS), SPECS[:2])
    with pytest.raises(ValueError, match="float32"):
        render_views(image.float(), draw(image, SPECS), SPECS)
