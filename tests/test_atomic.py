"""Files that are complete or not there, and what is left of processes that were killed."""

from __future__ import annotations

import os
from pathlib import Path

from clove_ssl.atomic import SUFFIX, clear_leftovers, replacing, write_text


def test_what_killed_processes_left_is_cleared_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    left = tmp_path / "deep" / f"page.html.123{SUFFIX}"
    left.parent.mkdir()
    left.write_text("half")
    with replacing(tmp_path / "a.txt") as file:
        file.write(b"whole")
        clear_leftovers(tmp_path)
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "deep"]
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / f"a.txt.{os.getpid()}{SUFFIX}").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "precious").read_text() == "kept"
    assert (tmp_path / "a.txt").read_text() == "new"
    assert not (tmp_path / "a.txt").is_symlink()
