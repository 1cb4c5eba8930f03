"""Steps whose first stage and box head are replays train like others; by hand, on a CPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from builders.graphs_by_hand import record_by_hand
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from torch import Tensor

from clove_ssl.layers import captured
from clove_ssl.layers.captured import MOST_KINDS, CapturedFunction
from clove_ssl.tasks.rcnn.features import C4Features, PyramidFeatures

STEPS = 6


def train(monkeypatch: pytest.MonkeyPatch, kind: str, *, replays: bool) -> list[Tensor]:
    """The losses of some steps."""
    monkeypatch.setattr(CapturedFunction, "_record", record_by_hand)
    monkeypatch.setattr(captured, "MOST_KINDS", MOST_KINDS if replays else 0)
    for features in (C4Features, PyramidFeatures):  # as on a GPU
        monkeypatch.setattr(features, "pools_without_waiting", lambda *_: True)
    recorder = SimpleNamespace(memory=nullcontext)
    recorder.beside = lambda: recorder
    model = tiny_detector(kind).train()
    model.capture(recorder, accumulates=False, warn=pytest.fail)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    losses = []
    for step in range(STEPS):
        terms = torch.stack(list(model.losses(tiny_batch(), step=step).values()))
        terms.sum().backward()
        losses.append(terms.detach().clone())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    recorded = [part.kinds for part in (model.captured, model.captured_boxes) if part is not None]
    assert recorded == ([1, 1] if replays else [0, 0])
    return losses


@pytest.mark.parametrize("kind", ["fpn", "c4", "c4-masks", "keypoints"])
def test_replays_train_like_plain_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = train(monkeypatch, kind, replays=True)
    plain = train(monkeypatch, kind, replays=False)
    torch.testing.assert_close(torch.stack(mine), torch.stack(plain), rtol=1e-5, atol=1e-6)


def test_without_gradients_nothing_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_detector("fpn").train()
    recorder = SimpleNamespace(memory=pytest.fail)
    recorder.beside = lambda: recorder
    model.capture(recorder, accumulates=False, warn=pytest.fail)
    monkeypatch.setattr(CapturedFunction, "__call__", lambda *_: pytest.fail("replayed"))
    with torch.no_grad():
        assert set(model.losses(tiny_batch(), step=0)) >= {"loss_cls", "loss_mask"}
