"""Memory that the processes of one machine share, and that nobody has to clean up.

It has no name in any folder: the system takes it back when the last process that
holds it ends, however that happens. Pages cost nothing until they are written. It
does not count against the size of ``/dev/shm``, which is small in many containers.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import Any


def has_shared_memory() -> bool:
    """Whether this system has memory of this kind."""
    return hasattr(os, "memfd_create")


class SharedMemory:
    """Bytes, zero at first, that are the same for all processes that hold them.

    Worker processes inherit them, or get them with what is pickled at their start. Processes
    that were started side by side open them by ``address``.
    """

    def __init__(self, size: int) -> None:
        # Not multiprocessing's shared memory: its names outlive a killed run, and fill /dev/shm.
        file = os.memfd_create("clove-photos")
        os.ftruncate(file, size)
        self._take(file)

    @classmethod
    def at(cls, address: str) -> SharedMemory:
        """The memory that another process of this machine calls ``address``."""
        memory = cls.__new__(cls)
        memory._take(os.open(address, os.O_RDWR | os.O_CLOEXEC))
        return memory

    @property
    def address(self) -> str:
        """Where other processes of the same user find it while this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep all other processes out; what they wrote before can be read."""
        # A lock of the file, which the system opens when its holder dies; a mutex in the memory
        # would stay locked for good.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _take(self, file: int) -> None:
        self._file = file
        self.bytes = mmap.mmap(file, os.fstat(file).st_size)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            os.close(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_parent, (DupFd(self._file),)


def _from_parent(file: Any) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory._take(file.detach())
    return memory
