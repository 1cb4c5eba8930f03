"""Read a whole image file, which may be anything that is called like one.

Sizes are known before reading: a file of gigabytes is no image, sparse or not, and would keep a
worker busy for minutes. Files such as those of ``/proc`` say nothing true about their size.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from clove_ssl.atomic import without_waiting

MAX_FILE_BYTES = 2**30  # 100 million pixels of four 16-bit samples have 800 MB


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file; ``OSError`` for anything that no image can be."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) or b""
    if len(data) > size:
        raise _refused(f"it holds more than the {size:,} bytes that it is said to have")
    return data


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that is no pipe, no device, and not too large for an image."""
    if "\0" in os.fsdecode(path):
        raise _refused("its name holds a null character")
    # As a text: a number would be taken for a file that is open, and closed.
    with open(os.fspath(path), "rb", opener=without_waiting) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise _refused(f"{os.fspath(path)} is not a regular file")
        check_size(facts.st_size)
        yield file


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is there, whatever the name is; one that no file can have is no error."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def check_size(size: int) -> None:
    """Refuse what is too large for an image."""
    if size > MAX_FILE_BYTES:
        raise _refused(
            f"it has {size / 2**30:,.1f} GiB; an image file has at most "
            f"{MAX_FILE_BYTES / 2**30:g} GiB"
        )


def _refused(reason: str) -> OSError:
    """An error whose reason is in ``strerror``, where those of the system have theirs."""
    error = OSError(reason)
    error.strerror = reason
    return error
