"""Large JPEGs decoded at a fraction of their size: fewer pixels, the same places."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.config.views import ViewsConfig
from clove_ssl.data import reading
from clove_ssl.data.decode import decode
from clove_ssl.data.order import Draws
from clove_ssl.data.reading import EncodedImages, RenderedViews
from clove_ssl.data.sources import open_source
from clove_ssl.views.draw.crops import UNIFORMS_PER_VIEW
from clove_ssl.views.draw.parameters import draw_views
from clove_ssl.views.render.cpu import possible_reduction, render_views

CLOSE = ViewsConfig(global_size=32, global_scale=(0.2, 1.0), local_count=2, local_size=16)
SPECS = tuple(
    replace(spec, jitter_probability=0.0, grey_probability=0.0, blur_probability=0.0)
    for spec in CLOSE.specs()
)


def ramp(height: int, width: int) -> Image.Image:
    """Red tells the column and green the row, so a pixel says where it comes from."""
    y, x = np.mgrid[:height, :width]
    planes = [255 * (x + 0.5) / width, 255 * (y + 0.5) / height, np.full((height, width), 128)]
    return Image.fromarray(np.stack(planes, axis=-1).round().astype(np.uint8))


def encoded(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=95, subsampling=0)
    return content.getvalue()


@given(st.integers(0, 10_000), st.integers(40, 900), st.integers(40, 900))
def test_no_view_loses_detail(seed: int, height: int, width: int) -> None:
    uniforms = np.random.default_rng(seed).random((1, len(SPECS), UNIFORMS_PER_VIEW))
    parameters = draw_views(uniforms, height, width, SPECS)
    reduction = possible_reduction(parameters, SPECS)
    sides = parameters.crop[0, :, 2:].min(axis=1)
    assert reduction == 1 or all(
        side >= reduction * spec.size for side, spec in zip(sides, SPECS, strict=True)
    )
    assert reduction == 8 or any(
        side < 2 * reduction * spec.size for side, spec in zip(sides, SPECS, strict=True)
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [(601, 803), (800, 640)])
def test_views_show_the_same_places(seed: int, size: tuple[int, int]) -> None:
    data = encoded(ramp(*size))
    uniforms = np.random.default_rng(seed).random((1, len(SPECS), UNIFORMS_PER_VIEW))
    parameters = draw_views(uniforms, *size, SPECS)
    whole = render_views(decode(data, max_pixels=10**7), parameters, SPECS)
    reduction = possible_reduction(parameters, SPECS)
    assert reduction > 1
    small = decode(data, max_pixels=10**7, reduce=reduction)
    for a, b in zip(
        whole, render_views(small, parameters, SPECS, reduction=reduction), strict=True
    ):
        assert (a.int() - b.int()).abs().max() <= 2  # a shift of a pixel is more on these ramps


@pytest.fixture
def photos(tmp_path: Path) -> DataConfig:
    ramp(700, 900).save(tmp_path / "large.jpg", quality=95)
    ramp(70, 90).save(tmp_path / "small.jpg", quality=95)
    ramp(700, 900).save(tmp_path / "plain.png")
    return DataConfig(source=str(tmp_path))


def test_only_large_jpegs_are_decoded_smaller(photos: DataConfig, monkeypatch) -> None:
    source = open_source(photos)
    reductions = {}

    def watched(data: bytes, *, max_pixels: int, reduce: int = 1) -> torch.Tensor:
        reductions[len(data)] = reduce
        return decode(data, max_pixels=max_pixels, reduce=reduce)

    monkeypatch.setattr(reading, "decode", watched)
    everything = Draws(np.zeros(3, np.int64), np.arange(3))
    rendered = RenderedViews(source, SPECS, photos, seed=1)[everything]
    by_name = {source.name(i): reductions[len(source.read(i))] for i in range(3)}
    assert {Path(name).name: reduction > 1 for name, reduction in by_name.items()} == {
        "large.jpg": True,
        "small.jpg": False,
        "plain.png": False,
    }
    sizes = {tuple(size) for size in rendered.parameters.image_size.tolist()}
    assert sizes == {(700, 900), (70, 90)}


def test_parameters_do_not_depend_on_the_reduction(photos: DataConfig) -> None:
    everything = Draws(np.zeros(3, np.int64), np.arange(3))
    source = open_source(photos)
    rendered = RenderedViews(source, SPECS, photos, seed=1)[everything]
    whole = EncodedImages(source, SPECS, photos, seed=1, keeps_jpegs=False)[everything]
    np.testing.assert_array_equal(rendered.parameters.crop, whole.parameters.crop)
