"""What processes that were killed have left half-written."""

from __future__ import annotations

import os
from pathlib import Path

from clove_ssl.atomic import SUFFIX, clear_leftovers, replacing


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
