"""A step of a method never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from builders.batches.two_views import two_views
from builders.gpu_marks import NEEDS_GPU
from builders.runs.method_runs import DEEP, TRAINED, small_method

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.methods.base import Method, Progress
from clove_ssl.views.batch import ViewBatch

pytestmark = NEEDS_GPU


@contextmanager
def waiting_forbidden() -> Iterator[None]:
    """Torch raises where the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", TRAINED)
def test_nobody_waits(name: str) -> None:
    config = small_method(name, size=96 if name in DEEP else 64)
    stage = "last" if name in DEEP else "c4"
    method = config.build(build_backbone(BackboneConfig(name="resnet18", stage=stage))).cuda()
    batch = two_views(config, images=16).to("cuda")
    views = tuple(replace(view, pixels=view.pixels.float()) for view in batch.views)
    step(method, replace(batch, views=views), Progress(0, 10))  # makes what later ones have at hand
    with waiting_forbidden():
        step(method, replace(batch, views=views), Progress(1, 10))


def step(method: Method, batch: ViewBatch, progress: Progress) -> None:
    method(batch, progress).loss.backward()
    method.after_step(progress)
