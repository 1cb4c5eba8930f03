"""Files that are complete or not there, with no more permissions than they had."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from clove_ssl import atomic
from clove_ssl.atomic import append_to_regular, checked_first, replacing, write_text


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == 0o640


def test_a_private_file_stays_private_and_none_becomes_a_program(tmp_path: Path) -> None:
    for given, left in ((0o600, 0o600), (0o755, 0o644 & ~_umask())):
        (tmp_path / "a").touch()
        (tmp_path / "a").chmod(given)
        write_text(tmp_path / "a", "text")
        assert mode(tmp_path / "a") == left


def test_names_of_unfinished_files_cannot_be_guessed(tmp_path: Path) -> None:
    with replacing(tmp_path / "a"), replacing(tmp_path / "a"):
        names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 2
    assert not any(str(os.getpid()) == name.split(".")[1] for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["a" * 255, "é" * 127 + "a"])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_a_link_in_the_way_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "precious").write_text("untouched")
    (tmp_path / f"a.7{atomic.SUFFIX}").symlink_to(tmp_path / "precious")
    monkeypatch.setattr(atomic.secrets, "randbelow", lambda limit: 7)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "a", "text")
    assert (tmp_path / "precious").read_text() == "untouched"


def test_what_was_checked_replaces_what_was_there_and_leaves_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    for text in ("first", "second"):
        with checked_first(folder) as new:
            (new / "inner").mkdir(parents=True)
            write_text(new / "inner/a", text)
            write_text(new.with_name("beside"), text)
        assert (folder / "inner/a").read_text() == text
        assert (tmp_path / "new/beside").read_text() == text
        (folder / "mine").touch()
    assert sorted(path.name for path in folder.parent.rglob("*")) == [
        *("a", "beside", "folder", "inner", "mine")
    ]


def test_what_was_checked_has_no_more_permissions_than_what_it_replaces(tmp_path: Path) -> None:
    for given, left in ((0o600, 0o600), (0o755, 0o644 & ~_umask())):
        (tmp_path / "a").touch()
        (tmp_path / "a").chmod(given)
        with checked_first(tmp_path / "a") as new:
            write_text(new, "text")
        assert mode(tmp_path / "a") == left


def test_what_fails_its_check_changes_nothing(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "before")
    with pytest.raises(KeyboardInterrupt):
        _interrupted(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"


def _interrupted(path: Path) -> None:
    with checked_first(path) as new:
        write_text(new, "after")
        raise KeyboardInterrupt


def _umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


def test_a_log_goes_on_in_its_file_and_never_waits_at_a_pipe(tmp_path: Path) -> None:
    for line in ("a\n", "b\n"):
        with append_to_regular(tmp_path / "log.txt") as file:
            file.write(line)
    assert (tmp_path / "log.txt").read_text() == "a\nb\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        append_to_regular(tmp_path / "pipe")
    os.close(reader)
    with pytest.raises(OSError, match="No such device"):  # nobody reads there
        append_to_regular(tmp_path / "pipe")
