"""Patterns find what Python's glob finds, and do not search for ever."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest

from clove_ssl.data import searching
from clove_ssl.data.names import find_shards
from clove_ssl.data.searching import matching_files
from clove_ssl.errors import UserError

FILES = ("a.tar", "b.txt", ".c.tar", "x/a.tar", "x/y/b.tar", "x/.h/a.tar", "z[1]/a.tar", "x/y/z")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        *("*.tar", "**/*.tar", "x/*", "*/*.tar", "?.t?t", "[ab].*", ".*", "x/**/*.tar", "**/y/*"),
        *("z[[]1]/*", "x/../*.tar", "nothing/*", "**/nothing", "**/**/b.tar", "./*.tar"),
    ],
)
def test_what_is_found_is_what_glob_finds(folder: Path, pattern: str) -> None:
    for each in (pattern, str(folder / pattern)):
        wanted = {os.path.normpath(path) for path in glob.glob(each, recursive=True)}
        assert {os.path.normpath(path) for path in matching_files(each)} == wanted


def test_links_that_lead_back_are_followed_once(folder: Path) -> None:
    (folder / "x" / "again").symlink_to(folder)
    (folder / "x" / "self").symlink_to("self")
    assert len(find_shards(f"{folder}/**/a.tar")) == 3


def test_a_search_through_everything_ends_with_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "MOST_ENTRIES", 4)
    with pytest.raises(UserError, match=r"more than 4 files and folders; the search was in"):
        find_shards("**/*.tar")
