"""Time without work, on the clock of the host; tests/gpu has the other clock."""

import time

import pytest
import torch

from clove_ssl.training.batches import WaitingTime


def test_waits_are_added_up_until_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    waiting = WaitingTime(torch.device("cpu"))
    for _ in range(2):
        with waiting.counted():
            pass
    assert waiting.take_seconds() == 6
    assert waiting.take_seconds() == 0
