"""Files that are either complete or not there.

A file is written under another name, flushed to the disk, and only then takes
its place, so that neither a crash nor a full disk leaves half of it behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from clove_ssl.errors import UserError

SUFFIX = ".writing"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that becomes ``path`` at the end, if nothing went wrong."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{SUFFIX}")
    try:
        with _new_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)  # while it is held, so that nobody takes it for a leftover
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _new_file(path: Path) -> BinaryIO:
    """Open a file that is surely new, not a link that somebody laid there, and hold it."""
    while True:
        path.unlink(missing_ok=True)  # of a process that had our number and was killed
        file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
        with suppress(OSError):  # of file systems without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():
            return file
        file.close()  # somebody who cleared up was faster than our lock


def clear_leftovers(folder: Path) -> None:
    """Remove what killed processes did not finish writing below a folder.

    Who writes holds the file, on this or another machine, so a file that can be held is left over.
    """
    for path in folder.rglob(f"*{SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def write_text(path: Path, text: str) -> None:
    """Replace the content of a text file."""
    with replacing(path) as file:
        file.write(text.encode())


def cause(error: OSError) -> str:
    """Why a file could not be written, as a person says it."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "the disk is full"
    return error.strerror or str(error)


def unwritable(what: str, place: Path, error: OSError) -> UserError:
    """The error for things, such as ``Scores``, that cannot be written to a place."""
    return UserError(
        f"{what} cannot be written to {place}: {cause(error)}. Give a folder with room that you "
        "may write to."
    )


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
