"""Checkpoints: atomic, verified, rotated, and never lost to a full disk."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch

from clove_ssl import atomic
from clove_ssl.errors import UserError
from clove_ssl.training import checkpoints
from clove_ssl.training.checkpoints import CheckpointStore


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, warnings: list[str]) -> CheckpointStore:
    return CheckpointStore(tmp_path, keep=2, warn=warnings.append)


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": torch.full((1000,), float(step))}


def test_the_newest_checkpoint_is_loaded(store: CheckpointStore) -> None:
    for step in (1, 2, 10):
        store.save(step, state(step))
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded["step"] == 10
    assert torch.equal(loaded["weights"], torch.full((1000,), 10.0))


def test_an_empty_store_has_nothing_to_load(store: CheckpointStore) -> None:
    assert store.load_latest() is None
    assert store.last_path() == "none"


def test_old_checkpoints_go_and_milestones_stay(store: CheckpointStore, tmp_path: Path) -> None:
    for step in range(1, 7):
        store.save(step, state(step), milestone=step == 2)
    assert [checkpoint.step for checkpoint in store.all()] == [6, 5, 2]
    assert len(list(tmp_path.iterdir())) == 6  # three files with three checksums, nothing else


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "no checksum"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    store: CheckpointStore, warnings: list[str], damage: str
) -> None:
    store.save(1, state(1))
    newest = store.save(2, state(2))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "flip":
        newest.write_bytes(content)
    elif damage == "no checksum":
        newest.with_suffix(".sha256").unlink()
    else:
        newest.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded["step"] == 1
    assert len(warnings) == 1
    assert str(newest) in warnings[0]


def test_only_damaged_checkpoints_are_a_clear_error(store: CheckpointStore) -> None:
    store.save(1, state(1)).write_bytes(b"")
    with pytest.raises(UserError, match="All 1 checkpoints"):
        store.load_latest()


def test_a_full_disk_leaves_the_previous_checkpoint_intact(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.save(1, state(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full.*clove resume"):
        store.save(2, state(2))
    assert not list(tmp_path.glob("*.writing"))
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded["step"] == 1


def test_a_write_that_fails_in_the_middle_names_the_real_cause(
    store: CheckpointStore, tmp_path: Path
) -> None:
    store.save(1, state(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match="File too large.*clove resume"):
            store.save(2, {"step": 2, "weights": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("*.writing"))
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded["step"] == 1


def test_a_half_written_file_is_not_a_checkpoint(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(1, state(1))
    (tmp_path / "step-000000002.pt.writing").write_bytes(b"half")
    assert [checkpoint.step for checkpoint in store.all()] == [1]
    store.save(3, state(3))
    assert not list(tmp_path.glob("*.writing"))


def test_a_checkpoint_cannot_run_code(store: CheckpointStore, tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    path = store.save(1, {"step": 1, "weights": Malicious()})
    with pytest.raises(Exception, match="[Ww]eights"):
        checkpoints.load_state(path)
    assert not (tmp_path / "ran").exists()
