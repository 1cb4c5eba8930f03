"""What processes that were killed have left half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from clove_ssl.atomic import SUFFIX, checked_first, clear_leftovers, replacing


def test_what_killed_processes_left_is_cleared_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    left = tmp_path / "deep" / f"page.html.123{SUFFIX}"
    left.parent.mkdir()
    left.write_text("half")
    pipe = tmp_path / f"pipe{SUFFIX}"
    os.mkfifo(pipe)
    with replacing(tmp_path / "a.txt") as file:
        file.write(b"whole")
        clear_leftovers(tmp_path)
    assert not left.exists()
    assert not pipe.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "deep"]
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_so_is_an_export_that_was_never_checked_but_none_that_is_being_made(tmp_path: Path) -> None:
    left = tmp_path / "export" / f".checked-abc{SUFFIX}"
    left.mkdir(parents=True)
    (left / "weights").write_text("half")
    with checked_first(tmp_path / "export" / "weights") as new:
        new.write_text("whole")
        clear_leftovers(tmp_path)
    assert [path.name for path in (tmp_path / "export").iterdir()] == ["weights"]
    assert (tmp_path / "export" / "weights").read_text() == "whole"


def test_a_killed_export_leaves_what_can_be_cleared(tmp_path: Path) -> None:
    killed = (
        "import os, pathlib, sys; from clove_ssl.atomic import checked_first\n"
        "with checked_first(pathlib.Path(sys.argv[1])) as new:\n"
        "    new.write_text('half'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", killed, tmp_path / "weights"], check=False)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    clear_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())
