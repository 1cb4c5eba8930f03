"""Files of a few megabytes, read whole: not pipes, which wait, and not what fills the memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TextIO

_PIECE = 2**20  # bytes


def read_regular(path: Path, *, most: int) -> bytes:
    """The bytes of a regular file, and one more than ``most`` of a larger one; or ``OSError``."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        _check_kind(facts.st_mode, path)
        # Asking for all that there may be would take as much memory at once.
        data = file.read(min(facts.st_size, most) + 1)
        while len(data) <= most and (more := file.read(min(_PIECE, most + 1 - len(data)))):
            data += more  # files such as those of /proc have more than they say
        return data


def append_to_regular(path: Path) -> TextIO:
    """A text file to write on at its end, which is made if it is not there; or ``OSError``."""
    file = open(path, "a", encoding="utf-8", opener=_without_waiting)  # noqa: SIM115
    try:
        _check_kind(os.fstat(file.fileno()).st_mode, path)
    except OSError:
        file.close()
        raise
    return file


def _without_waiting(path: str, flags: int) -> int:
    """Open, without waiting for somebody to read at the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def _check_kind(mode: int, path: Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
