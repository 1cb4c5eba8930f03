"""Patterns and shards that would keep a run waiting."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from clove_ssl.data.names import MAX_SHARDS, expand_braces, find_shards
from clove_ssl.data.sources import TarSource
from clove_ssl.errors import UserError


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..99999999}.tar",
        "{000..999}/{000..999}/{0..9}.tar",
        "{a,b}" * 40 + ".tar",
        "{0..0}" * 5000 + ".tar",
        "{" * 900 + "1,2" + "}" * 900,
    ],
    ids=["range", "product", "choices", "many braces", "nested braces"],
)
def test_braces_are_counted_before_they_are_expanded(pattern: str) -> None:
    start = time.process_time()
    with pytest.raises(UserError, match=f"more than {MAX_SHARDS:,} shards"):
        find_shards(pattern)
    assert time.process_time() - start < 1


def test_a_number_of_any_length_is_no_range() -> None:
    pattern = "{0.." + "9" * 5000 + "}.tar"
    assert list(expand_braces(pattern)) == [pattern]


def test_many_missing_shards_are_counted_soon(tmp_path: Path) -> None:
    start = time.process_time()
    with pytest.raises(UserError, match=r"200000 shards are missing"):
        find_shards(str(tmp_path / "{000000..199999}.tar"))
    assert time.process_time() - start < 5


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("a.jpg")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"1234"))


def test_a_pipe_in_the_place_of_a_shard_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(UserError, match=r"a\.tar is not a regular file"):
        TarSource(tmp_path / "a.tar")


def test_a_pipe_in_the_place_of_the_index_is_replaced(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar")
    place = tmp_path / "a.tar.clove-index"
    os.mkfifo(place)
    assert TarSource(tmp_path / "a.tar").read(0) == b"1234"
    assert place.is_file()
