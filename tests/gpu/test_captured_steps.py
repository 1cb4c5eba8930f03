"""A run whose steps are captured has the weights of one whose steps are not, bit for bit."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.batches.two_views import two_views
from builders.gpu_marks import NEEDS_GPU
from builders.runs.interruptions import assert_same, figures, final_state
from builders.runs.method_runs import DEEP, TRAINED, small_method
from builders.runs.tiny_runs import tiny_config
from torch import Tensor

from clove_ssl.backbones.build import build_backbone, fuse_norms
from clove_ssl.config.pretraining import BackboneConfig, LateViewsConfig
from clove_ssl.layers.captured import Recorder
from clove_ssl.methods.base import Method, Progress, StepOutput
from clove_ssl.methods.clove_plus.config import WholeConfig
from clove_ssl.optimizers import LARS
from clove_ssl.pretraining import run as pretraining
from clove_ssl.training.captured import STEPS_BEFORE, CapturedPasses, why_not_captured
from clove_ssl.training.numerics import Precision, start_repeatably
from clove_ssl.views.batch import ViewBatch

pytestmark = NEEDS_GPU
STEPS = 30  # a balance is measured in every 20th
BF16 = Precision("bf16", "", "cuda")


def build(name: str, **changes: Any) -> Method:
    config = replace(small_method(name, size=96 if name in DEEP else 64), **changes)
    stage = "last" if name in DEEP else "c4"
    torch.manual_seed(0)
    method = config.build(build_backbone(BackboneConfig(name="resnet18", stage=stage))).cuda()
    method = method.to(memory_format=torch.channels_last)
    fuse_norms(method)
    return method


def batches(name: str) -> list[ViewBatch]:
    config = small_method(name, size=96 if name in DEEP else 64)
    made = []
    for seed in range(3):
        batch = two_views(config, images=16).to("cuda")
        generator = torch.Generator("cuda").manual_seed(seed)
        views = tuple(
            replace(
                view,
                pixels=torch.randn(view.pixels.shape, generator=generator, device="cuda").to(
                    torch.bfloat16, memory_format=torch.channels_last
                ),
            )
            for view in batch.views
        )
        made.append(replace(batch, views=views))
    return made


def train(
    name: str, *, captured: bool, micro_batches: int = 1, **changes: Any
) -> tuple[dict[str, Tensor], list[float], int]:
    """Weights and losses after some steps, and how many of the steps were replayed."""
    start_repeatably(0, torch.device("cuda"), deterministic=True)
    method, several = build(name, **changes), batches(name)
    optimizer = LARS(method.parameters(), 0.5, weight_decay=1e-5)
    passes = CapturedPasses(method, BF16, torch.device("cuda"), micro_batches=micro_batches)
    losses, replayed = [], 0
    with passes.own_stream():
        for step in range(STEPS):
            for number in range(micro_batches):
                progress = Progress(step, STEPS, closes_step=number + 1 == micro_batches)
                batch = several[(step + number) % 3]
                if captured and passes.covers(batch, progress, number=number):
                    output = passes.run(batch, progress, check=lambda loss: None, number=number)
                    replayed += 1
                else:
                    with BF16.autocast():
                        output = method(batch, progress)
                    (output.loss / micro_batches).backward()
                losses.append(output.loss.detach().clone())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            method.after_step(progress)
    state = {key: value.clone() for key, value in method.state_dict().items()}
    return state, torch.stack(losses).tolist(), replayed


def assert_same_bits(name: str, **changes: Any) -> None:
    plain, plain_losses, none = train(name, captured=False, **changes)
    state, losses, replayed = train(name, captured=True, **changes)
    assert none == 0
    assert replayed >= STEPS - 2 * STEPS_BEFORE
    assert losses == plain_losses
    assert [key for key in plain if not torch.equal(plain[key], state[key])] == []


@pytest.mark.parametrize("name", TRAINED)
def test_captured_steps_have_the_same_bits(name: str) -> None:
    if reason := why_not_captured(build(name)):
        pytest.skip(reason)
    assert_same_bits(name)


def test_captured_slots_have_the_same_bits() -> None:
    assert_same_bits("slotcon", slot_room="all")


@pytest.mark.parametrize("name", ["clove-plus", "moco"])
def test_captured_micro_batches_have_the_same_bits(name: str) -> None:
    plain, plain_losses, _ = train(name, captured=False, micro_batches=3)
    state, losses, replayed = train(name, captured=True, micro_batches=3)
    assert replayed >= 3 * (STEPS - 2 * STEPS_BEFORE)
    assert losses == plain_losses
    assert [key for key in plain if not torch.equal(plain[key], state[key])] == []


def test_a_weight_that_changes_in_every_step_is_captured() -> None:
    assert_same_bits("clove-plus", whole=WholeConfig(width=16, schedule="cosine"))


def test_page_locked_garbage_does_not_end_up_in_a_graph() -> None:
    """Whoever needs such memory afterwards would be told of an invalid argument."""
    recorder, graph = Recorder(torch.device("cuda")), torch.cuda.CUDAGraph()
    value, before = torch.zeros(4, device="cuda"), gc.get_threshold()
    gc.collect()
    with recorder.own_stream():
        _drop_a_cycle_around(torch.ones(4).pin_memory(), value)
        gc.set_threshold(1)
        try:
            with recorder.recorded(graph):
                value += len([[number] for number in range(1000)])
        finally:
            gc.set_threshold(*before)
        graph.replay()
    gc.collect()
    assert torch.ones(4).pin_memory().is_pinned()
    assert value.tolist() == [1001.0] * 4


def _drop_a_cycle_around(pinned: Tensor, value: Tensor) -> None:
    value.copy_(pinned, non_blocking=True)
    cycle: list[object] = [pinned]
    cycle.append(cycle)


def test_larger_views_at_the_end_of_a_run_are_recorded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[int] = []
    run = CapturedPasses.run

    def noted(self: CapturedPasses, batch: ViewBatch, *args: Any, **options: Any) -> StepOutput:
        replayed.append(batch.views[0].pixels.shape[-1])
        return run(self, batch, *args, **options)

    monkeypatch.setattr(CapturedPasses, "run", noted)
    found = []
    for capture in ("always", "never"):
        config = tiny_config(
            tmp_path / capture,
            backbone=BackboneConfig(name="resnet18", stage="c4"),
            late_views=LateViewsConfig(share=0.5, enlarge=1.5),
            steps=20,
            device="cuda",
            compile="never",
            capture=capture,
        )
        pretraining.pretrain(config)
        losses = [line["loss"] for line in figures(config.out)]
        found.append((losses, final_state(config.out)["learner"]))
    assert {side: replayed.count(side) for side in (64, 96)} == dict.fromkeys((64, 96), 7)
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])
