"""Locks that are pipes, links to nowhere, or on a file system that has none."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.runs.tiny_runs import tiny_config

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining.run import pretrain
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.state import read_state


def pipe(lock: Path) -> None:
    os.mkfifo(lock)


def dangling(lock: Path) -> None:
    lock.symlink_to(lock.parent / "nowhere" / "lock")


def folder(lock: Path) -> None:
    lock.mkdir()


def link_to_itself(lock: Path) -> None:
    lock.symlink_to(lock)


ODD = {
    pipe: "it is not a regular file",
    dangling: "it is a link that leads nowhere",
    folder: "Is a directory",
    link_to_itself: "symbolic links",
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = directory.create(tmp_path / "run")
    files.save(PretrainConfig(out=made.path, steps=50, batch_size=4), made.config)
    return made


@pytest.mark.parametrize("make", ODD)
def test_a_lock_that_is_no_file_is_named_and_does_not_hinder_readers(
    make: Callable[[Path], None], run: RunDirectory
) -> None:
    make(run.path / ".lock")
    with pytest.raises(UserError, match=rf"\.lock cannot be locked: .*{ODD[make]}"):
        directory.locked(run).__enter__()
    assert read_state(run, PretrainConfig(out=run.path, steps=50), []).status == "interrupted"
    assert cli.main(["report", str(run.path), "--no-pictures"]) == 0
    assert cli.main(["doctor", str(run.path)]) in (0, 1)


def without_locks(handle: int, operation: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_run_on_a_disk_without_locks_says_that_it_cannot_protect_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", without_locks)
    config = tiny_config(tmp_path / "run", steps=1)
    pretrain(config)
    assert "the run cannot protect itself" in (config.out / "log.txt").read_text()
    assert cli.main(["report", str(config.out), "--no-pictures"]) == 0
    assert cli.main(["doctor", str(config.out)]) in (0, 1)
