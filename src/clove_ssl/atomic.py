"""Files that are either complete or not there.

A file is written under another name, flushed to the disk, and only then takes
its place, so that neither a crash nor a full disk leaves half of it behind.
That name cannot be guessed, and nothing that is there already is opened: in a
folder that others may write to, a link could lead anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TextIO

from clove_ssl.errors import UserError, escaped

SUFFIX = ".writing"
_MOST_BYTES = 200  # of a name that an unfinished file begins with: file systems allow 255 in all


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that becomes ``path`` at the end, if nothing went wrong."""
    temporary, new = _created(path)
    try:
        with new as file:
            yield file
            file.flush()
            # Before the rename: a file system may otherwise keep the new name and lose the content.
            os.fsync(file.fileno())
            os.replace(temporary, path)  # while it is held, so that nobody takes it for a leftover
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _created(path: Path) -> tuple[Path, BinaryIO]:
    """A new file beside ``path`` that this process holds."""
    while True:
        begin = os.fsdecode(os.fsencode(path.name)[:_MOST_BYTES])
        temporary = path.with_name(f"{begin}.{secrets.randbelow(10**18)}{SUFFIX}")
        file = open(temporary, "xb", opener=_opener(path))  # noqa: SIM115 - who asked closes it
        _hold(file.fileno())
        if temporary.exists():
            return temporary, file
        file.close()  # somebody who cleared up was faster than the lock


def _opener(path: Path) -> Callable[[str, int], int]:
    """Open a new file with no more permissions than the one it replaces; never a program."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode) & 0o666
    except OSError:
        mode = 0o666  # less what the user's umask takes away
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)


def write_text(path: Path, text: str) -> None:
    """Replace the content of a text file."""
    try:
        content = text.encode()
    except UnicodeEncodeError:  # a file name in it is no text; people are shown its bytes
        content = escaped(text).encode()
    with replacing(path) as file:
        file.write(content)


@contextmanager
def checked_first(path: Path) -> Iterator[Path]:
    """Where to write a file or folder and look at it before it takes its place, ``path``.

    What is written beside it goes along; if anything goes wrong, all stays as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix=".checked-", suffix=SUFFIX, dir=path.parent) as folder,
        _opened(folder) as handle,
    ):
        _hold(handle)
        yield Path(folder, path.name)
        for new in sorted(each for each in Path(folder).rglob("*") if each.is_file()):
            place = path.parent / new.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            if place.is_file():  # which may be private
                new.chmod(stat.S_IMODE(new.stat().st_mode & place.stat().st_mode))
            os.replace(new, place)
            _sync_folder(place.parent)


def check_new_file(path: Path, endings: Sequence[str], *, usual: str) -> None:
    """Refuse what ``--out`` names before the work, if its ending or its folder is wrong."""
    if path.is_dir():
        raise UserError(
            f"--out {path} is a folder. Name a file, such as --out {path / usual}{endings[0]}"
        )
    if path.suffix not in endings:
        raise UserError(
            f"--out {path} has an unknown ending; expected {' or '.join(endings)}. "
            f"Try --out {path.parent / (path.stem or usual)}{endings[0]}"
        )
    if not path.parent.is_dir():
        raise UserError(f"The folder {path.parent} does not exist. Make it: mkdir -p {path.parent}")


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
    with _opened(folder) as handle:
        os.fsync(handle)


@contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    """A handle of a file or folder, which is never waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield handle
    finally:
        os.close(handle)


def _hold(handle: int) -> None:
    """Let nobody take a file or folder for a leftover while this process has it open."""
    with suppress(OSError):  # of file systems without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def clear_leftovers(folder: Path) -> None:
    """Remove what killed processes did not finish writing below a folder.

    Who writes holds the file or folder, on this or another machine, so one that can be held is
    left over.
    """
    for path in list(folder.rglob(f"*{SUFFIX}")):
        with suppress(OSError), _opened(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def append_to_regular(path: Path) -> TextIO:
    """A text file to write on at its end, which is made if it is not there; or ``OSError``.

    A pipe is refused: nobody may be there to read, and opening it would wait for somebody.
    """
    file = open(path, "a", encoding="utf-8", opener=without_waiting)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def without_waiting(path: str, flags: int) -> int:
    """Open a file, as ``open`` asks its ``opener`` to, even a pipe at whose other end nobody is."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
