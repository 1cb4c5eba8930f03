"""The chaos run sees what commands say and how they end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from chaos.__main__ import Chaos, Row
from chaos.commands import Command, group_members
from chaos.jobs import leftovers

pytestmark = pytest.mark.forks


def end_badly() -> None:
    raise RuntimeError("before the command")


def wait_for_a_signal() -> None:
    signal.pause()


def test_the_end_of_a_command_is_judged(tmp_path: Path) -> None:
    chaos, row = Chaos(tmp_path, seed=0), Row()
    fine = Command(["list", "formats"], tmp_path / "fine.txt")
    refused = Command(["list", "--nothing"], tmp_path / "refused.txt")
    broken = Command(["list", "formats"], tmp_path / "broken.txt", before=end_badly)
    for command in (fine, refused, broken):
        assert chaos._note_end(command, row, command.said)
    assert "torchvision" in fine.said.read_text()
    assert (fine.code, refused.code, broken.code) == (0, 2, 1)
    assert (row.errors, row.tracebacks) == (1, 1)
    assert not row.is_clean


def test_a_killed_command_leaves_nobody(tmp_path: Path) -> None:
    command = Command(["list", "formats"], tmp_path / "said.txt", before=wait_for_a_signal)
    assert group_members(command.pid) == [command.pid]
    assert command.hit()
    assert command.wait()
    assert command.code == -signal.SIGKILL
    assert not command.hit()
    assert not group_members(command.pid)


def test_leftovers_are_what_an_undisturbed_run_does_not_have(tmp_path: Path) -> None:
    for name in ("whole/a.txt", "out/a.txt", "out/b.txt", "out/checkpoints/step-1.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "out/checkpoints/step-2.pt.7.writing").touch()
    found = leftovers(tmp_path / "out", tmp_path / "whole")
    assert found == ["b.txt", "checkpoints/step-2.pt.7.writing"]
