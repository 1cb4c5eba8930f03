"""Waiting is what the GPU does, not what the host does."""

import time

import torch
from builders.gpu_marks import NEEDS_GPU

from clove_ssl.training.observer import WaitingTime

pytestmark = NEEDS_GPU


def busy_gpu(seconds: float) -> None:
    torch.cuda._sleep(int(2e9 * seconds))  # cycles of about 2 GHz


def test_a_host_that_waits_beside_a_busy_gpu_costs_nothing() -> None:
    waiting = WaitingTime(torch.device("cuda"))
    busy_gpu(0.5)
    with waiting.counted():
        time.sleep(0.05)
    assert waiting.take_seconds() < 0.01


def test_a_gpu_that_runs_dry_waits() -> None:
    waiting = WaitingTime(torch.device("cuda"))
    torch.cuda.synchronize()
    with waiting.counted():
        time.sleep(0.05)
    assert 0.04 < waiting.take_seconds() < 0.2
    assert waiting.take_seconds() == 0
