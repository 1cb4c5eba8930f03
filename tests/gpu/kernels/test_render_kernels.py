"""The Triton kernels against the torch version, view by view.

On a GPU at full size; with ``TRITON_INTERPRET=1`` in the environment the tiny cases
also run on the CPU, a few pixels at a time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from builders.batches.view_batches import assert_close, draw, grey_levels, made_up_photos
from builders.gpu_marks import DEVICE, NEEDS_KERNELS, full_size

from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.views.render.blur_bands import blur_bands, blur_reaches
from clove_ssl.views.render.cpu import render_unrounded
from clove_ssl.views.render.gpu import render_batch
from clove_ssl.views.render.packing import PackedImages

pytest.importorskip("triton")
from clove_ssl.views.render.triton.blur_weights import blur_weights  # noqa: E402
from clove_ssl.views.render.triton.parts import COUNTS, REACH  # noqa: E402

pytestmark = NEEDS_KERNELS

SPECS = ViewsConfig().specs()
PHOTOS = [(320, 427), (427, 320), (375, 500), (97, 64), (8, 8), (33, 700), (1, 1)]


def compare(sizes, specs: tuple[ViewSpec, ...], *, seed: int = 0, channels_last=True) -> None:
    """Both versions on the same batch; the kernels keep unfinished views in half precision."""
    images = [image.to(DEVICE) for image in made_up_photos(sizes)]
    parameters = draw(images, specs, seed)
    packed = PackedImages.from_images(images)
    settings = {"dtype": torch.float32, "channels_last": channels_last}
    found = render_batch(packed, parameters, specs, **settings, backend="triton")
    expected = render_batch(packed, parameters, specs, **settings, backend="torch")
    for view in range(len(specs)):
        assert found[view].stride() == expected[view].stride()
        for number in range(len(images)):
            assert_close(
                grey_levels(found[view][number]),
                grey_levels(expected[view][number]),
                mean=0.1,
                nearly_all=2.5,
                largest=5.0,
                about=f"view {view} of {parameters.image(number)}",
            )


@pytest.mark.parametrize("channels_last", [True, False])
def test_tiny_views_of_odd_sizes(channels_last: bool) -> None:
    busy = replace(
        SPECS[1],
        size=19,
        jitter_probability=1.0,
        blur_probability=0.7,
        solarize_probability=0.5,
        vertical_flip_probability=0.5,
    )
    other = replace(
        busy, size=16, interpolation="bilinear", blur_kernel="gaussian", blur_sigma=(0.1, 1.0)
    )
    sizes = [(8, 8), (30, 21)] if channels_last else [(13, 40)]
    compare(sizes, (busy, other), channels_last=channels_last)


def test_tiny_crops_that_are_smaller_than_a_filter() -> None:
    colourful = replace(
        SPECS[0], size=9, jitter_probability=1.0, jitter_strength=(0.8, 0.8, 0.8, 0.5)
    )
    small = replace(colourful, size=5, interpolation="bilinear", vertical_flip_probability=0.5)
    compare([(1, 1), (1, 9), (3, 2), (70, 50)], (colourful, small))


@pytest.mark.parametrize("kernel", ["pil", "gaussian"])
def test_tiny_views_with_blurs_as_wide_as_they_are(kernel) -> None:
    compare([(9, 8)], (blurred(kernel, 7, (1.5, 4.0)),))


@full_size
@pytest.mark.parametrize("kernel", ["pil", "gaussian"])
def test_a_blur_matrix_that_is_too_large_for_one_program(kernel) -> None:
    compare([(9, 8)], (blurred(kernel, 66, (5.0, 9.0)),))


def blurred(kernel, size: int, sigma: tuple[float, float]) -> ViewSpec:
    return replace(SPECS[0], size=size, blur_probability=1.0, blur_sigma=sigma, blur_kernel=kernel)


@pytest.mark.parametrize("size", [1, 4, 20, 60])
@pytest.mark.parametrize("kernel", ["pil", "gaussian"])
def test_tiny_blur_matrices_are_those_of_torch(kernel, size: int) -> None:
    sigma = np.array([0.1, 1e-6, 2.0, 0.5, 2**0.5, 1.4, 3**0.5, 1.9999])
    reaches = blur_reaches(sigma, kernel)
    reach = int(reaches.max())
    expected = blur_bands(torch.from_numpy(sigma), size, reach=reach, kernel=kernel)
    side = expected.shape[-1]
    counts = torch.zeros(len(sigma) + 1, COUNTS.value, dtype=torch.int32)
    blurred = torch.arange(1, len(sigma) + 1, dtype=torch.int32)
    counts[1:, REACH.value] = torch.from_numpy(reaches)
    bands = torch.empty(expected.shape, device=DEVICE)
    blur_weights[(len(sigma),)](
        *(bands, torch.from_numpy(sigma).to(DEVICE), blurred.to(DEVICE), counts.to(DEVICE), side),
        GAUSSIAN=kernel == "gaussian",
        SIDE=64,
    )
    torch.testing.assert_close(bands.cpu(), expected, rtol=0, atol=5e-7)


@full_size
@pytest.mark.parametrize("seed", range(4))
def test_default_views_of_photos(seed: int) -> None:
    compare(PHOTOS, SPECS, seed=seed)


@full_size
def test_default_views_are_those_of_the_cpu_renderer() -> None:
    images = made_up_photos(PHOTOS)
    parameters = draw(images, SPECS)
    on_device = [image.to(DEVICE) for image in images]
    views = render_batch(on_device, parameters, SPECS, dtype=torch.float32)
    for number, image in enumerate(images):
        expected = render_unrounded(image, parameters.image(number), SPECS)
        for view in range(len(SPECS)):
            assert_close(
                grey_levels(views[view][number]),
                expected[view],
                mean=0.1,
                nearly_all=2.5,
                largest=6.0,
                about=f"view {view} of {parameters.image(number)}",
            )


@full_size
@pytest.mark.parametrize("size", [32, 100, 129, 384, 512])
def test_views_of_any_size(size: int) -> None:
    specs = tuple(replace(spec, size=size) for spec in SPECS[:3])
    compare(PHOTOS, specs)


@full_size
@pytest.mark.parametrize(
    "changes",
    [
        {"interpolation": "bilinear"},
        {"blur_kernel": "gaussian"},
        {"blur_probability": 1.0, "blur_sigma": (3.0, 12.0)},
        {"blur_probability": 0.0},
        {"vertical_flip_probability": 0.5},
        {"jitter_probability": 1.0, "jitter_strength": (0.8, 0.8, 0.8, 0.5)},
        {"solarize_probability": 1.0},
    ],
    ids=[
        "bilinear",
        "gaussian",
        "wide blur",
        "no blur",
        "upside down",
        "strong jitter",
        "solarize",
    ],
)
def test_views_of_any_kind(changes: dict[str, object]) -> None:
    compare(PHOTOS, tuple(replace(spec, **changes) for spec in SPECS))


@full_size
def test_large_photos_and_tiny_ones_in_one_batch() -> None:
    compare([(3000, 4000), (8, 8), (4000, 1500), (320, 427)], SPECS)


@full_size
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_number_types_only_round(dtype: torch.dtype) -> None:
    images = [image.to(DEVICE) for image in made_up_photos(PHOTOS)]
    parameters = draw(images, SPECS)
    full = render_batch(images, parameters, SPECS, dtype=torch.float32)
    step = torch.finfo(dtype).eps
    for a, b in zip(full, render_batch(images, parameters, SPECS, dtype=dtype), strict=True):
        assert b.dtype == dtype
        torch.testing.assert_close(b.float(), a, rtol=step, atol=step / 8)


@full_size
def test_the_same_batch_gives_the_same_bits() -> None:
    images = [image.to(DEVICE) for image in made_up_photos(PHOTOS)]
    parameters = draw(images, SPECS)
    first = render_batch(images, parameters, SPECS, dtype=torch.float32)
    for _ in range(5):
        again = render_batch(images, parameters, SPECS, dtype=torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@full_size
def test_every_pixel_is_written() -> None:
    images = [image.to(DEVICE) for image in made_up_photos(PHOTOS)]
    parameters = draw(images, SPECS)
    shapes = [view.shape for view in render_batch(images, parameters, SPECS, dtype=torch.float32)]
    # The allocator hands freed memory out again, so what is not written would show as NaN.
    poison = [torch.full(shape, float("nan"), device=DEVICE) for shape in shapes for _ in range(4)]
    del poison
    for view in render_batch(images, parameters, SPECS, dtype=torch.float32):
        assert view.isfinite().all()


@full_size
def test_the_host_never_waits_for_the_device() -> None:
    images = PackedImages.from_images(made_up_photos(PHOTOS)).pin_memory()
    parameters = draw([images.image(number) for number in range(len(images))], SPECS)
    on_device = images.to(DEVICE)
    render_batch(on_device, parameters, SPECS, dtype=torch.bfloat16)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_device = images.to(DEVICE, non_blocking=True)
        render_batch(on_device, parameters, SPECS, dtype=torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
