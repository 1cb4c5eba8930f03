"""Readers: what the workers send, for rendering on the CPU and on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from builders.files.odd_files import write_odd_folder
from builders.runs.tiny_runs import tiny_method

from clove_ssl.config.pretraining import DataConfig
from clove_ssl.data.decode import decode
from clove_ssl.data.order import Draws
from clove_ssl.data.reading import EncodedImages, RenderedViews
from clove_ssl.data.sources import ImageSource, open_source

SPECS = tiny_method().view_specs()


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    write_odd_folder(tmp_path / "odd")
    return DataConfig(source=str(tmp_path / "odd"), max_bad=0.9)


@pytest.fixture
def source(config: DataConfig) -> ImageSource:
    return open_source(config)


@pytest.fixture
def draws(source: ImageSource) -> Draws:
    everything = np.arange(len(source))
    return Draws(np.zeros_like(everything), everything)


def test_a_gpu_gets_the_same_images_and_views_as_the_cpu(
    config: DataConfig, source: ImageSource, draws: Draws
) -> None:
    rendered = RenderedViews(source, SPECS, config, seed=3)[draws]
    encoded = EncodedImages(source, SPECS, config, seed=3, keeps_jpegs=True)[draws]
    assert encoded.bad == rendered.bad
    assert encoded.is_jpeg.any()
    assert not encoded.is_jpeg.all()
    for name, expected in vars(rendered.parameters).items():
        np.testing.assert_array_equal(getattr(encoded.parameters, name), expected)


def test_files_stay_files_and_everything_else_becomes_pixels(
    config: DataConfig, source: ImageSource, draws: Draws
) -> None:
    reader = EncodedImages(source, SPECS, config, seed=0, keeps_jpegs=True)
    encoded, decoded = reader[draws], reader.decoded_batch(draws)
    assert not decoded.is_jpeg.any()
    for number, is_jpeg in enumerate(encoded.is_jpeg):
        pixels = decoded.image(number)
        content = encoded.image(number)
        if is_jpeg:
            content = decode(content.numpy().tobytes(), max_pixels=10**8).flatten()
        assert torch.equal(content, pixels)
        height, width = encoded.parameters.image_size[number]
        assert len(pixels) == 3 * height * width


def test_without_a_gpu_decoder_nothing_stays_encoded(
    config: DataConfig, source: ImageSource, draws: Draws
) -> None:
    batch = EncodedImages(source, SPECS, config, seed=0, keeps_jpegs=False)[draws]
    assert not batch.is_jpeg.any()


def test_a_photo_above_the_size_limit_is_bad_for_both_readers(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(3):
        side = 40 if number == 1 else 20
        Image.new("RGB", (side, side), (number, 0, 0)).save(tmp_path / f"{number}.jpg")
    config = DataConfig(source=str(tmp_path), max_pixels=900)
    source, draws = open_source(config), Draws(np.zeros(3, int), np.arange(3))
    rendered = RenderedViews(source, SPECS, config, seed=0)[draws]
    encoded = EncodedImages(source, SPECS, config, seed=0, keeps_jpegs=True)[draws]
    assert [file.name for file in rendered.bad] == ["1.jpg"]
    assert encoded.bad == rendered.bad


def test_an_epoch_and_a_seed_change_the_views_and_nothing_else(
    config: DataConfig, source: ImageSource, draws: Draws
) -> None:
    reader = RenderedViews(source, SPECS, config, seed=0)
    first, again = reader[draws].parameters, reader[draws].parameters
    later = reader[Draws(draws.epochs + 1, draws.indices)].parameters
    other = RenderedViews(source, SPECS, config, seed=1)[draws].parameters
    np.testing.assert_array_equal(first.crop, again.crop)
    assert not np.array_equal(first.crop, later.crop)
    assert not np.array_equal(first.crop, other.crop)
