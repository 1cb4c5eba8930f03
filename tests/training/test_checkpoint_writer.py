"""Checkpoints that a thread writes: the same files, of the moment they were asked for."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.runs.contrastive_runs import small_method
from builders.runs.interruptions import assert_same
from builders.runs.tiny_runs import tiny_config
from torch import nn

from clove_ssl.errors import UserError
from clove_ssl.optimizers import build_optimizer
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.going_on import unrestored_method
from clove_ssl.runs.metrics import MetricsFile
from clove_ssl.training import checkpoints
from clove_ssl.training.checkpoints import (
    CheckpointStore,
    CheckpointWriter,
    Snapshot,
    State,
    load_state,
)
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.numerics import random_state

CPU = torch.device("cpu")


def nothing() -> None:
    """What a test has to bring to the disk."""


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, keep=2, warn=print)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writes stand still in their middle until this is set."""
    is_open, write_text = threading.Event(), checkpoints.write_text

    def waiting(path: Path, text: str) -> None:
        assert is_open.wait(timeout=60)
        write_text(path, text)

    monkeypatch.setattr(checkpoints, "write_text", waiting)
    return is_open


def trained_state(out: Path, name: str) -> State:
    """The state of a real method after an optimizer step."""
    config = tiny_config(out, **({} if name == "clove" else {"method": small_method(name)}))
    method = unrestored_method(config).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(config.optimizer, method, 0.1)
    sum(weight.sum() for weight in method.parameters() if weight.requires_grad).backward()
    optimizer.step()
    return {
        "step": 1,
        "learner": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": random_state(CPU),
        "feed": {"images": 8, "bad_files": {"a.jpg": "is empty"}},
    }


@pytest.mark.parametrize("name", ["clove", "moco"])
def test_the_file_is_that_of_a_plain_write(
    store: CheckpointStore, tmp_path: Path, name: str
) -> None:
    state = trained_state(tmp_path / "run", name)
    plain = store.save(1, state).read_bytes()
    writer = CheckpointWriter(store)
    writer.save(2, state, milestone=True, before=nothing)
    writer.wait()
    assert (tmp_path / "step-000000002-kept.pt").read_bytes() == plain
    assert store.all()[0].is_intact()


def test_tensors_that_share_memory_do_so_in_the_copy() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    state = {"step": 1, "whole": whole, "column": whole[:, 1], "turned": whole.T, "none": whole[:0]}
    copied = Snapshot(state).ready()
    assert_same(copied, state)
    assert copied["column"].stride() == whole[:, 1].stride()
    copied["whole"].zero_()
    assert not copied["column"].any()
    assert not copied["turned"].any()
    assert whole.any()


def test_later_steps_do_not_reach_the_file(store: CheckpointStore, gate: threading.Event) -> None:
    layer, groups = nn.Linear(3, 3), [{"lr": 0.1}]
    state = {"step": 1, "learner": layer.state_dict(), "groups": groups}
    expected = Snapshot(state).ready()
    writer = CheckpointWriter(store)
    writer.save(1, state, milestone=False, before=nothing)
    with torch.no_grad():
        layer.weight.zero_()
    groups[0]["lr"] = 0.2
    assert not store.all()  # the write goes on while this thread does something else
    gate.set()
    writer.wait()
    assert_same(load_state(store.all()[0].path), {"format": checkpoints.FORMAT, **expected})


def test_one_write_at_a_time(store: CheckpointStore, gate: threading.Event) -> None:
    writer = CheckpointWriter(store)
    writer.save(1, {"step": 1}, milestone=False, before=nothing)
    writer.check()  # does not wait
    threading.Timer(0.1, gate.set).start()
    found: list[int] = []
    writer.save(2, {"step": 2}, milestone=False, before=lambda: found.extend(steps(store)))
    writer.wait()
    assert found == [1]
    assert steps(store) == [2, 1]


def steps(store: CheckpointStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.all()]


def test_the_log_is_on_the_disk_before_the_checkpoint(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl", start_step=0)
    metrics.write(1, {"loss": 2.0})
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    writer = CheckpointWriter(store)
    writer.save(1, {"step": 1}, milestone=False, before=metrics.settle)
    writer.wait()
    assert synced[0] == str(tmp_path / "metrics.jsonl")
    metrics.close()


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def until_it_ended(writer: CheckpointWriter) -> None:
    assert writer._thread is not None
    writer._thread.join()


@pytest.mark.parametrize("ask", [CheckpointWriter.check, CheckpointWriter.wait])
def test_a_full_disk_is_told_once(
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[CheckpointWriter], None],
) -> None:
    store.save(1, {"step": 1})
    writer = CheckpointWriter(store)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_text", full_disk)
        writer.save(2, {"step": 2}, milestone=False, before=nothing)
        until_it_ended(writer)
    with pytest.raises(UserError, match="the disk is full.*step-000000001.pt.*clove resume"):
        ask(writer)
    writer.wait()  # nothing is left to tell
    assert store.load_latest() == {"format": checkpoints.FORMAT, "step": 1}


def test_a_run_on_a_full_disk_ends_with_the_step_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_text", full_disk)
        with pytest.raises(UserError, match="step-000000002.pt could not be written: the disk is"):
            pretraining.pretrain(config)
    assert not list((config.out / "checkpoints").iterdir())
    assert pretraining.resume(config.out).finished


def test_an_error_of_a_step_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    def fail(loop: TrainingLoop, *args: Any) -> bool:
        if loop.step < 2:
            return train_step(loop, *args)
        threading.Timer(0.1, gate.set).start()
        raise RuntimeError("out of the blue")

    train_step = TrainingLoop._train_step
    monkeypatch.setattr(TrainingLoop, "_train_step", fail)
    with pytest.raises(RuntimeError, match="out of the blue"):
        pretraining.pretrain(tiny_config(tmp_path / "run"))
    assert steps(CheckpointStore(tmp_path / "run" / "checkpoints", keep=2, warn=print)) == [2]
