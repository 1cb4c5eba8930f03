"""Errors a user can act on.

Every message has three parts: what is wrong (with the offending value), what
was expected, and what to type next. Internal mistakes stay plain exceptions
with a traceback; only ``UserError`` is printed without one by the CLI.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """A mistake in the configuration, the data or the command line."""


def escaped(text: str) -> str:
    """Text that can be shown anywhere.

    File names need not be valid UTF-8; their odd bytes become ``\\xe9``, and so do characters that
    would move the cursor of a terminal.
    """
    try:
        valid = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a character that stands for no byte
        valid = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _UNSHOWABLE.sub(lambda found: ascii(found[0])[1:-1], valid)


# Control characters but for tab and new line, and those that turn the direction of text.
_UNSHOWABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def counted(number: int, thing: str, things: str = "") -> str:
    """A number of things in words: 1 worker, 2 workers, 1,000 images."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Build the error for a name that is in no table, with a suggestion."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    longer = [choice for choice in choices if name and choice.startswith(f"{name}-")]
    hint = f" Did you mean {(longer or close)[0]!r}?" if longer or close else ""
    return UserError(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(choices)}.")


def already_there(path: Path) -> UserError:
    """Build the error for an ``--out`` that names something."""
    return UserError(f"{path} exists already. Choose another --out, or remove it first.")


_NEXT_STEPS = {
    errno.ENOSPC: "The disk is full: free some space, then type the command again",
    errno.EDQUOT: "Your quota is used up: free some space, then type the command again",
    errno.EACCES: "Choose a place that you may read and write, or change its permissions",
    errno.EPERM: "Choose a place that you may read and write, or change its permissions",
    errno.EROFS: "Choose a place that can be written to",
    errno.ENAMETOOLONG: "Give a shorter path",
    errno.ELOOP: "Give the path that the link should lead to",
    errno.EISDIR: "Give a file instead of a folder",
    errno.ENOTDIR: "Part of this path is a file; give a folder",
    errno.EMFILE: "Allow more open files: ulimit -n 4096",
    errno.EIO: "The disk does not answer as it should; look after it, then try again",
}


_NO_MEMORY = re.compile("failed to map segment|can('|no)t allocate memory", re.IGNORECASE)
_FULL_GPU = "CUDA out of memory"


def explained(error: Exception) -> UserError | None:
    """The machine's refusal as a message, where it is one that a user can act on."""
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return UserError(
            "There is not enough memory, or this shell may not have more of it. Close other "
            "programs, lower the batch, or allow more: ulimit -v unlimited"
        )
    if _FULL_GPU in str(error):
        return UserError(
            "The memory of the GPU is full. Lower the batch, take smaller images, or end what "
            "else runs there; nvidia-smi shows it."
        )
    if not isinstance(error, OSError):
        return None
    step = _NEXT_STEPS.get(error.errno or 0)
    if step is None:
        return None
    place = "" if error.filename is None else f"{str(error.filename)[:200]}: "
    return UserError(f"{place}{error.strerror}. {step}.")
