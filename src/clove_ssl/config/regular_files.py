"""Files of a few megabytes, read whole: not pipes, which wait, and not what fills the memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, *, most: int) -> bytes:
    """The bytes of a regular file, and one more than ``most`` of a larger one; or ``OSError``."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read(most + 1)
