"""Files of a few megabytes, read whole: not pipes, which wait, and not what fills the memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from clove_ssl.atomic import without_waiting

_PIECE = 2**20  # bytes


def read_regular(path: Path, *, most: int) -> bytes:
    """The bytes of a regular file, and one more than ``most`` of a larger one; or ``OSError``."""
    # As a text: a number would be taken for a file that is open, and closed.
    with open(os.fspath(path), "rb", opener=without_waiting) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        # Asking for all that there may be would take as much memory at once.
        data = file.read(min(facts.st_size, most) + 1)
        while len(data) <= most and (more := file.read(min(_PIECE, most + 1 - len(data)))):
            data += more  # files such as those of /proc have more than they say
        return data
