"""A training step of a detector waits for nothing but numbers that were sent for ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders.gpu_marks import NEEDS_GPU
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("kind", ["c4", "c4-masks", "fpn", "keypoints"])
def test_nobody_waits(kind: str) -> None:
    model = tiny_detector(kind).to("cuda", memory_format=torch.channels_last)
    batch = tiny_batch()
    batch = replace(batch, targets=tuple(each.prepared() for each in batch.targets)).to("cuda")
    sum(model.losses(batch, step=0).values()).backward()  # makes what later ones have at hand
    torch.cuda.set_sync_debug_mode("error")
    try:
        sum(model.losses(batch, step=1).values()).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
