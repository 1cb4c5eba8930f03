"""The device a user names, and the one a process takes."""

from __future__ import annotations

import pytest
import torch

from clove_ssl.errors import UserError
from clove_ssl.training.processes import choose_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


@pytest.mark.usefixtures("two_gpus")
def test_words_and_names_of_devices_are_understood() -> None:
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:0")
    assert choose_device("cuda", local_rank=1) == torch.device("cuda:1")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu", local_rank=7) == torch.device("cpu")
    assert choose_device("cuda", local_rank=None) == torch.device("cuda")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(UserError, match="Process 2 .* torch sees 2.*--nproc-per-node 2"):
        choose_device("auto", local_rank=2)
    with pytest.raises(UserError, match="cuda:2 was asked for, but torch sees 2 GPUs.*doctor"):
        choose_device("cuda:2")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_only_the_processor_is_there() -> None:
    assert choose_device("auto", local_rank=3) == torch.device("cpu")
    with pytest.raises(UserError, match="cuda was asked for, but torch sees 0 GPUs"):
        choose_device("cuda")
    for word in ("gpu", "mps", "meta", "cuda:999999999999"):
        with pytest.raises(UserError, match=f"'{word}' is no device. Give auto, cpu"):
            choose_device(word)
