"""Where the host waits for the device in a training step of a detector."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from builders.waits import waits_counted

# A GPU has kernels of our own for both, which ask nothing.
REPLACED_ON_A_GPU = {"choose.py", "pooling.py"}


@pytest.mark.parametrize(("kind", "reads"), [("c4", 1), ("fpn", 2), ("keypoints", 1)])
def test_a_step_waits_for_numbers_on_their_way_and_nothing_else(kind: str, reads: int) -> None:
    """All counts of regions come together; masks need one more, which is read behind the heads."""
    model, batch = tiny_detector(kind), tiny_batch()
    batch = replace(batch, targets=tuple(each.prepared() for each in batch.targets))
    with waits_counted(on_host=batch.keys) as places:
        sum(model.losses(batch, step=0).values()).backward()
    assert {name: n for name, n in places.items() if name not in REPLACED_ON_A_GPU} == {
        "transfers.py": reads
    }


def test_a_wait_is_seen() -> None:
    """The counting itself: what must be found is found."""
    flags = torch.tensor([True, False])
    with waits_counted(on_host=flags) as places:
        flags[flags]
        torch.nonzero(flags)
        flags.any().item()
        flags.sum()[None].tolist()
        flags.tolist()
    assert places.total() == 4
