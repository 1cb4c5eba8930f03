"""The batch renderer's torch version on the CPU, view by view against the CPU renderer.

The tolerances, in grey levels: resampling weights are rounded differently, so one
pixel in some hundreds is a level off after resizing, rarely two, and colour
operations then stretch that. Everything else agrees to a hundredth.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from builders.batches.view_batches import assert_close, draw, grey_levels, made_up_photos
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.config.views import ViewsConfig
from clove_ssl.views.batch import normalize
from clove_ssl.views.render.blur_bands import blur_bands, blur_reaches, full_matrices
from clove_ssl.views.render.blurring import blur_matrix, blur_reach
from clove_ssl.views.render.cpu import render_unrounded, render_views
from clove_ssl.views.render.gpu import has_kernels, render_batch
from clove_ssl.views.render.packing import PackedImages, send_together
from clove_ssl.views.render.plain import resize_matrices

SPECS = ViewsConfig().specs()
SIZES = [(375, 500), (60, 130), (700, 420), (8, 8), (300, 20)]
QUIET = {
    "jitter_probability": 0.0,
    "grey_probability": 0.0,
    "blur_probability": 0.0,
    "solarize_probability": 0.0,
}


def assert_like_the_cpu(sizes, specs, *, seed=0, mean=0.05, nearly_all=2.5, largest=5.0) -> None:
    """Compare every view of every image."""
    images = made_up_photos(sizes)
    parameters = draw(images, specs, seed)
    found = [
        grey_levels(view) for view in render_batch(images, parameters, specs, dtype=torch.float32)
    ]
    for number, image in enumerate(images):
        expected = render_unrounded(image, parameters.image(number), specs)
        for view in range(len(specs)):
            assert_close(
                found[view][number],
                expected[view],
                mean=mean,
                nearly_all=nearly_all,
                largest=largest,
                about=f"view {view} of {parameters.image(number)}",
            )


# --- view by view against the CPU renderer


@pytest.mark.parametrize("seed", range(3))
def test_views_are_those_of_the_cpu_renderer(seed: int) -> None:
    assert_like_the_cpu(SIZES, SPECS, seed=seed)


@pytest.mark.parametrize(
    ("changes", "mean", "largest"),
    [
        pytest.param({}, 0.02, 2.01, id="bicubic"),
        pytest.param({"interpolation": "bilinear"}, 0.02, 2.01, id="bilinear"),
        pytest.param({"flip_probability": 1.0}, 0.02, 2.01, id="flip"),
        pytest.param({"vertical_flip_probability": 1.0}, 0.02, 2.01, id="vertical flip"),
        pytest.param({"jitter_strength": (0.4, 0, 0, 0)}, 0.02, 3.0, id="brightness"),
        pytest.param({"jitter_strength": (0, 0.4, 0, 0)}, 0.02, 3.0, id="contrast"),
        pytest.param({"jitter_strength": (0, 0, 0.4, 0)}, 0.02, 3.0, id="saturation"),
        pytest.param({"jitter_strength": (0, 0, 0, 0.5)}, 0.02, 4.0, id="hue"),
        pytest.param({"grey_probability": 1.0}, 0.02, 2.01, id="grey"),
        pytest.param({"blur_probability": 1.0}, 0.02, 2.01, id="blur"),
        pytest.param({"blur_probability": 1.0, "blur_sigma": (2, 9)}, 0.02, 2.01, id="wide blur"),
        pytest.param(
            {"blur_probability": 1.0, "blur_kernel": "gaussian"}, 0.02, 2.01, id="gaussian"
        ),
        pytest.param({"solarize_probability": 1.0}, 0.02, 2.01, id="solarize"),
    ],
)
def test_each_operation_is_that_of_the_cpu_renderer(changes, mean, largest) -> None:
    jitter = float("jitter_strength" in changes)
    specs = [replace(SPECS[2], **(QUIET | {"jitter_probability": jitter} | changes))] * 3
    assert_like_the_cpu(SIZES, specs, mean=mean, nearly_all=largest, largest=largest)


def test_views_of_any_size_and_kind_mix() -> None:
    odd = replace(SPECS[0], size=33, interpolation="bilinear", blur_kernel="gaussian")
    specs = [odd, SPECS[2], replace(SPECS[1], size=50), odd]
    images = made_up_photos(SIZES[1:4])
    views = render_batch(images, draw(images, specs), specs, dtype=torch.float32)
    assert [tuple(view.shape) for view in views] == [
        (3, 3, size, size) for size in (33, 96, 50, 33)
    ]
    assert_like_the_cpu(SIZES[1:4], specs)


def test_solarisation_has_a_threshold_per_view() -> None:
    """Other thresholds jump by many levels, so pixels near them are left out."""
    specs = [
        replace(SPECS[2], **(QUIET | {"solarize_probability": 1.0}), solarize_threshold=threshold)
        for threshold in (40, 128, 200)
    ]
    images = made_up_photos(SIZES[:2])
    parameters = draw(images, specs)
    views = render_batch(images, parameters, specs, dtype=torch.float32)
    for number, image in enumerate(images):
        plain = [replace(spec, solarize_probability=0.0) for spec in specs]
        sharp = render_unrounded(image, draw(images, plain).image(number), plain)
        for view, spec, levels in zip(views, specs, sharp, strict=True):
            threshold = spec.solarize_threshold
            clear = (levels - threshold).abs() > 2
            expected = torch.where(levels >= threshold, 255 - levels, levels)
            difference = (grey_levels(view[number]) - expected).abs()[clear]
            assert difference.max() < 2.01


def test_one_pixel_and_one_row_are_images_too() -> None:
    assert_like_the_cpu([(1, 1), (1, 40), (50, 2)], SPECS[1:3])


def test_portions_do_not_change_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    images = made_up_photos(SIZES[:3])
    parameters = draw(images, SPECS)
    whole = render_batch(images, parameters, SPECS, dtype=torch.float32)
    monkeypatch.setattr("clove_ssl.views.render.plain._PORTION", 3 * 300 * 300)
    for a, b in zip(
        whole, render_batch(images, parameters, SPECS, dtype=torch.float32), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-3)


# --- what comes out


def test_views_are_normalised_as_rendered_batches_are() -> None:
    images = made_up_photos([(60, 70)])
    parameters = draw(images, SPECS[2:3])
    levels = render_views(images[0], parameters, SPECS[2:3])[0][None]
    view = render_batch(images, parameters, SPECS[2:3], dtype=torch.float32)[0]
    expected = normalize(levels, torch.float32, channels_last=True)
    # Half a level of rounding, and what colours make of one of resizing; a level is about 0.0175.
    torch.testing.assert_close(view, expected, rtol=0, atol=0.08)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_number_types_only_round(dtype: torch.dtype) -> None:
    images = made_up_photos(SIZES[:2])
    parameters = draw(images, SPECS)
    full = render_batch(images, parameters, SPECS, dtype=torch.float32)
    for a, b in zip(full, render_batch(images, parameters, SPECS, dtype=dtype), strict=True):
        assert torch.equal(a.to(dtype), b)


@pytest.mark.parametrize("channels_last", [True, False])
def test_views_have_the_memory_layout_asked_for(channels_last: bool) -> None:
    images = made_up_photos(SIZES[:2])
    views = render_batch(
        images, draw(images, SPECS), SPECS, dtype=torch.float32, channels_last=channels_last
    )
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert [tuple(view.shape) for view in views] == [(2, 3, 224, 224)] * 2 + [(2, 3, 96, 96)] * 6
    assert all(view.is_contiguous(memory_format=layout) for view in views)


def test_a_view_depends_on_its_own_image_and_parameters_alone() -> None:
    images = made_up_photos(SIZES[:3])
    parameters = draw(images, SPECS)
    together = render_batch(images, parameters, SPECS, dtype=torch.float32)
    for number, image in enumerate(images):
        alone = render_batch([image], parameters.image(number), SPECS, dtype=torch.float32)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[number], b[0], rtol=0, atol=1e-3)


def test_parameters_of_other_images_are_refused() -> None:
    images = made_up_photos([(40, 50), (30, 20)])
    parameters = draw(images, SPECS)
    with pytest.raises(ValueError, match="image 0 is 20 x 30"):
        render_batch(images[::-1], parameters, SPECS, dtype=torch.float32)
    with pytest.raises(ValueError, match="8 views"):
        render_batch(images, parameters, SPECS[:2], dtype=torch.float32)
    with pytest.raises(ValueError, match="1 images"):
        render_batch(images[:1], parameters, SPECS, dtype=torch.float32)


def test_kernels_are_for_cuda_devices() -> None:
    assert not has_kernels("cpu")
    assert has_kernels("cuda") == (find_spec("triton") is not None)


# --- the parts


def test_packed_images_are_the_images() -> None:
    images = made_up_photos(SIZES)
    packed = PackedImages.from_images(images)
    assert len(packed) == len(images)
    assert packed.buffer.numel() == sum(image.numel() for image in images)
    for number, image in enumerate(images):
        assert torch.equal(packed.image(number), image)
    assert torch.equal(packed.to("cpu").image(2), images[2])


def test_only_rgb_bytes_are_packed() -> None:
    for wrong in (torch.zeros(3, 4, 5), torch.zeros(4, 5, 3, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="expected uint8"):
            PackedImages.from_images([wrong])


def test_arrays_that_are_sent_together_arrive_as_they_were() -> None:
    arrays = [
        np.arange(5, dtype=np.int32),
        np.array([[True, False, True]]),
        np.random.default_rng(0).random((3, 7)),
        np.zeros((0, 4), dtype=np.float32),
        np.arange(12, dtype=np.int64).reshape(3, 4).T,
    ]
    for array, tensor in zip(arrays, send_together(arrays, torch.device("cpu")), strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


@given(st.integers(1, 300), st.integers(1, 70), st.sampled_from(["bicubic", "bilinear"]))
def test_resize_matrices_are_torchs_antialiased_resampling(length, size, interpolation) -> None:
    signal = torch.rand(length, generator=torch.Generator().manual_seed(length))
    matrix = resize_matrices(
        torch.tensor([length]),
        torch.tensor([False]),
        size,
        longest=length + 3,
        interpolation=interpolation,
    )[0]
    expected = F.interpolate(
        signal.view(1, 1, 1, -1).expand(1, 1, 2, -1), (2, size), mode=interpolation, antialias=True
    )[0, 0, 0]
    assert (matrix[:, length:] == 0).all()
    torch.testing.assert_close(matrix[:, :length] @ signal, expected, rtol=0, atol=1e-4)


@given(
    st.lists(st.floats(0.1, 6), min_size=1, max_size=4),
    st.integers(1, 120),
    st.sampled_from(["pil", "gaussian"]),
)
def test_blur_bands_stand_for_the_blur_matrices(sigmas, size, kernel) -> None:
    reaches = blur_reaches(np.array(sigmas), kernel)
    assert reaches.tolist() == [blur_reach(sigma, kernel) for sigma in sigmas]
    bands = blur_bands(torch.tensor(sigmas), size, reach=int(reaches.max()), kernel=kernel)
    for matrix, sigma in zip(full_matrices(bands, size), sigmas, strict=True):
        expected = blur_matrix(float(np.float32(sigma)), size, kernel=kernel)
        np.testing.assert_allclose(matrix, expected, atol=1e-5)


@pytest.mark.parametrize("kernel", ["pil", "gaussian"])
def test_a_blur_of_nothing_is_the_identity(kernel) -> None:
    bands = blur_bands(torch.tensor([0.0, 1.0]), 40, reach=6, kernel=kernel)
    assert torch.equal(full_matrices(bands, 40)[0], torch.eye(40))
