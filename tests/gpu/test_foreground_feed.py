"""Pasted views, jigsaw patches and labels that come through the GPU, beside those of workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from builders.batches.view_batches import draw, made_up_photos
from builders.gpu_marks import NEEDS_GPU
from builders.runs.interruptions import figures
from builders.runs.method_runs import method_run, small_method
from PIL import Image

from clove_ssl.config.pretraining import OptimizerConfig
from clove_ssl.data.scenes import SceneSource
from clove_ssl.pretraining import run as pretraining
from clove_ssl.views.pasting import paste_views

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_pasting_on_the_device_is_pasting_on_the_host(layout: torch.memory_format) -> None:
    specs = small_method("cp2", size=64).view_specs()
    parameters = draw(made_up_photos([(40, 50)] * 8), specs)
    views = [torch.randn(8, 3, 64, 64).to(memory_format=layout) for _ in specs]
    on_device = paste_views([view.cuda() for view in views], parameters, specs)
    for mine, theirs in zip(on_device, paste_views(views, parameters, specs), strict=True):
        assert torch.equal(mine.cpu(), theirs)
        assert mine.is_contiguous(memory_format=layout)


def write_photos(folder: Path) -> None:
    """Photos of three classes, which only methods that need classes take notice of."""
    scenes = SceneSource(24, size=96)
    for number in range(len(scenes)):
        path = folder / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scenes.scene(number).image).save(path, quality=95)


def losses_of(
    folder: Path, name: str, *, render: Literal["cpu", "gpu"], device: str
) -> list[float]:
    """The losses of a run on the photos in ``folder``."""
    # Small steps, since views differ by a grey level and that must not grow.
    optimizer = OptimizerConfig(name="sgd", lr=0.01, warmup_epochs=0.0)
    config = method_run(
        folder / render, name, device=device, precision="fp32", optimizer=optimizer, micro_batch=8
    )
    data = replace(config.data, source=str(folder / "photos"), render=render, workers=2)
    pretraining.pretrain(replace(config, data=data))
    return [line["loss"] for line in figures(folder / render)]


@pytest.mark.parametrize("name", ["cp2", "detco", "supervised"])
def test_the_gpu_feed_follows_the_cpu_feed(tmp_path: Path, name: str) -> None:
    write_photos(tmp_path / "photos")
    expected = losses_of(tmp_path, name, render="cpu", device="cuda")
    assert losses_of(tmp_path, name, render="gpu", device="cuda") == pytest.approx(
        expected, rel=0.02
    )
