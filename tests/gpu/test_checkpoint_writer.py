"""A checkpoint of a GPU's state is of the step after which it was asked for."""

from __future__ import annotations

from pathlib import Path

import torch
from builders.gpu_marks import NEEDS_GPU
from builders.runs.interruptions import assert_same

from clove_ssl.training.checkpoints import CheckpointStore, CheckpointWriter

pytestmark = NEEDS_GPU


def test_steps_that_are_queued_behind_the_copy_do_not_reach_the_file(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1, warn=print)
    weights = torch.randn(64, 64, 3, 3, device="cuda").to(memory_format=torch.channels_last)
    busy = torch.randn(4096, 4096, device="cuda")
    state = {"step": 1, "learner": {"weights": weights, "tied": weights[0]}}
    expected = {"weights": weights.cpu(), "tied": weights[0].cpu()}
    writer = CheckpointWriter(store)
    for _ in range(50):  # the copy has to wait for this
        busy = torch.tanh(busy @ busy)
    writer.save(1, state, milestone=False, before=lambda: None)
    weights.zero_()
    writer.wait()
    loaded = store.load_latest()
    assert loaded is not None
    assert_same(loaded["learner"], expected)
    assert loaded["learner"]["weights"].is_contiguous(memory_format=torch.channels_last)
