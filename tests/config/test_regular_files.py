"""Files are read up to a limit, and never at the price of the limit."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.whole_files import read_whole


def test_a_generous_limit_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_regular(tmp_path / "a", most=2**45) == b"abc"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16


def test_a_larger_file_gives_one_byte_more_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")
    assert read_regular(tmp_path / "a", most=3) == b"abcd"
    assert read_regular(tmp_path / "a", most=6) == b"abcdef"


def test_a_file_that_lies_about_its_size_is_read() -> None:
    assert b"MemTotal" in read_regular(Path("/proc/meminfo"), most=10**6)
    assert len(read_regular(Path("/proc/meminfo"), most=100)) == 101


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "pipe", most=10)


def test_folders_leave_no_file_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for read in (lambda: read_regular(tmp_path, most=10), lambda: read_whole(tmp_path)):
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            read()
    assert len(os.listdir("/proc/self/fd")) == len(before)
