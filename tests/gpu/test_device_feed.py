"""A whole run with views made on the GPU, beside one with views made by the workers."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.files.odd_files import write_odd_folder
from builders.gpu_marks import NEEDS_GPU
from builders.runs.interruptions import assert_same, crash_after, final_state
from builders.runs.method_runs import small_method
from builders.runs.tiny_runs import RESNET18, tiny_config
from PIL import Image
from torch import Tensor

from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.data.decode import find_batch_decoder
from clove_ssl.data.order import ImageOrder
from clove_ssl.data.reading import EncodedBatch, EncodedImages
from clove_ssl.data.scenes import SceneSource
from clove_ssl.data.sources import open_source
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.device_renderer import DeviceRenderer
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.training.numerics import start_repeatably

pytestmark = NEEDS_GPU
NEEDS_NVJPEG = pytest.mark.skipif(
    find_batch_decoder() is None, reason="torchvision has no nvJPEG here"
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    scenes = SceneSource(24, size=96)
    for number in range(len(scenes)):
        image = Image.fromarray(scenes.scene(number).image)
        image.save(folder / f"{number}.{'png' if number % 5 == 0 else 'jpg'}", quality=95)
    return folder


def config_for(out: Path, photos: Path, render: str, **changes: object) -> PretrainConfig:
    config = tiny_config(out, backbone=RESNET18, device="cuda", precision="fp32", **changes)
    data = replace(config.data, source=str(photos), render=render, workers=2)
    return replace(config, data=data)


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(RunDirectory(run))]


@pytest.mark.parametrize("compiled", ["never", "always"])
def test_the_gpu_feed_follows_the_cpu_feed(tmp_path: Path, photos: Path, compiled: str) -> None:
    pretraining.pretrain(config_for(tmp_path / "cpu", photos, "cpu"))
    pretraining.pretrain(config_for(tmp_path / "gpu", photos, "gpu", compile=compiled))
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), abs=0.05)


def test_memory_is_that_of_the_run_alone(tmp_path: Path, photos: Path) -> None:
    gc.collect()
    kept = torch.cuda.memory_allocated() / 2**30  # by fixtures of other tests
    torch.empty(2**30, dtype=torch.uint8, device="cuda")  # what a run before it had
    pretraining.pretrain(config_for(tmp_path / "run", photos, "gpu"))
    assert read_metrics(RunDirectory(tmp_path / "run"))[-1]["memory_gib"] < kept + 1


def test_broken_files_are_named_in_the_same_way(tmp_path: Path) -> None:
    odd = write_odd_folder(tmp_path / "odd")
    config = config_for(tmp_path / "run", tmp_path / "odd", "gpu", steps=8)
    config = replace(config, data=replace(config.data, max_bad=0.9))
    assert pretraining.pretrain(config).finished
    log = (tmp_path / "run" / "log.txt").read_text()
    assert not [name for name in odd.bad if f"cannot read {name}:" not in log]


@pytest.mark.parametrize("compiled", ["never", "always"])
def test_a_run_with_views_from_the_gpu_resumes_bit_for_bit(
    tmp_path: Path, photos: Path, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = config_for(tmp_path / "whole", photos, "gpu", compile=compiled)
    pretraining.pretrain(whole)
    broken = config_for(tmp_path / "broken", photos, "gpu", compile=compiled)
    crash_after(3, monkeypatch, broken)
    pretraining.resume(tmp_path / "broken")
    assert_same(final_state(tmp_path / "broken"), final_state(tmp_path / "whole"))


@NEEDS_NVJPEG
def test_a_batch_that_waits_to_be_rendered_is_not_written_over(photos: Path) -> None:
    renderer, batches = renderer_of(photos)
    alone = rendered_alone(renderer, batches)
    sleep_on(renderer.stream)
    queued = [renderer.render(batch) for batch in batches]
    for ready, expected in zip(queued, alone, strict=True):
        assert torch.equal(ready.take().views[0].pixels, expected)


@NEEDS_NVJPEG
def test_nothing_fills_a_picture_after_it_was_decoded(photos: Path) -> None:
    start_repeatably(0, torch.device("cuda"), deterministic=True)
    renderer, batches = renderer_of(photos)
    alone = rendered_alone(renderer, batches)
    for batch, expected in zip(batches, alone, strict=True):
        sleep_on(renderer.decoding_stream)
        assert torch.equal(renderer.render(batch).take().views[0].pixels, expected)


def renderer_of(photos: Path) -> tuple[DeviceRenderer, list[EncodedBatch]]:
    data, specs = DataConfig(source=str(photos)), small_method("clove", size=64).view_specs()
    source = open_source(data)
    reader = EncodedImages(source, specs, data, seed=0, keeps_jpegs=True)
    renderer = DeviceRenderer(
        reader, torch.device("cuda"), dtype=torch.float32, decoder=find_batch_decoder()
    )
    order = ImageOrder(len(source), seed=0)
    return renderer, [reader[order.draws(start, start + 12)].pin_memory() for start in (0, 12)]


def rendered_alone(renderer: DeviceRenderer, batches: list[EncodedBatch]) -> list[Tensor]:
    views = []
    for batch in batches:
        views.append(renderer.render(batch).take().views[0].pixels.clone())
        torch.cuda.synchronize()
    return views


def sleep_on(stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
