"""In mixed precision and compiled a method stays near itself: its loss, and where it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from builders.batches.two_views import two_views
from builders.gpu_marks import NEEDS_GPU
from builders.runs.method_runs import DEEP, QUEUED, TRAINED, small_method
from torch import Tensor

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.methods.base import Method, Progress
from clove_ssl.pretraining.compile.method import compile_method
from clove_ssl.views.batch import ViewBatch

pytestmark = NEEDS_GPU

START = Progress(0, 10)
LOSS_BAND = 0.03  # of the loss in fp32
LEAST_COSINE = 0.8  # of the gradients in both precisions; that of another direction is near 0


class Step(NamedTuple):
    """What one step says."""

    loss: Tensor
    gradient: Tensor


def built(name: str, device: str, *, groups: int = 0) -> tuple[Method, ViewBatch]:
    """A method on stages of a ResNet-18, and a batch for it, in fp32; its keys in groups."""
    torch.manual_seed(0)
    changes = {"shuffle_groups": groups} if name in QUEUED else {}
    config = small_method(name, size=96 if name in DEEP else 64, **changes)
    stage = "last" if name in DEEP else "c4"
    method = config.build(build_backbone(BackboneConfig(name="resnet18", stage=stage)))
    batch = two_views(config, images=16).to(device)
    views = tuple(replace(view, pixels=view.pixels.float()) for view in batch.views)
    method = method.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return method, replace(batch, views=views)


def step_of(name: str, *, device: str, bf16: bool, compiled: bool = False, groups: int = 0) -> Step:
    """Loss and gradient of a forward and a backward pass."""
    method, batch = built(name, device, groups=groups)
    if compiled:
        compile_method(method)
    with torch.autocast(device, torch.bfloat16, enabled=bf16):
        output = method(batch, START)
    output.loss.backward()
    method.after_step(START)
    gradients = [p.grad.flatten() for p in method.parameters() if p.grad is not None]
    return Step(output.loss.detach(), torch.cat(gradients))


def assert_near(found: Step, expected: Step) -> None:
    torch.testing.assert_close(found.loss, expected.loss, rtol=LOSS_BAND, atol=LOSS_BAND)
    cosine = torch.cosine_similarity(found.gradient, expected.gradient, dim=0)
    assert cosine > LEAST_COSINE, cosine


@pytest.mark.parametrize("name", TRAINED)
def test_bf16_is_near_fp32(name: str) -> None:
    exact = step_of(name, device="cuda", bf16=False)
    rounded = step_of(name, device="cuda", bf16=True)
    assert rounded.loss.dtype == torch.float32
    assert rounded.gradient.isfinite().all()
    assert not torch.equal(rounded.gradient, exact.gradient)
    assert_near(rounded, exact)


@pytest.mark.parametrize("name", ["clove", "pixpro", "slotcon", "vicregl", *QUEUED])
def test_compiled_is_near_itself(name: str) -> None:
    """Also where views or groups of keys then pass together, each normalised on its own."""
    plain = step_of(name, device="cuda", bf16=False, groups=4)
    compiled = step_of(name, device="cuda", bf16=False, groups=4, compiled=True)
    assert_near(compiled, plain)
