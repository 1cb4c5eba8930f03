"""What can happen to a run: each disturbance is a function of the command and a generator."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from typing import BinaryIO

from chaos.commands import Command

from clove_ssl.data import whole_files


def kill_main(command: Command, chance: Random) -> bool:
    """SIGKILL for the main process."""
    return command.hit(signal.SIGKILL)


def kill_worker(command: Command, chance: Random) -> bool:
    """SIGKILL for a process that reads images, or whatever else the run has started."""
    while not (children := command.children()):
        if not command.is_running():
            return False
        time.sleep(0.01)
    try:
        os.kill(chance.choice(children), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def terminate(command: Command, chance: Random) -> bool:
    """SIGTERM, as a cluster sends it."""
    return command.hit(signal.SIGTERM)


def hang_up(command: Command, chance: Random) -> bool:
    """SIGHUP, as a closed terminal sends it."""
    return command.hit(signal.SIGHUP)


def stop_and_go(command: Command, chance: Random) -> bool:
    """SIGSTOP for everybody, and SIGCONT a second later."""
    if not command.hit(signal.SIGSTOP):
        return False
    time.sleep(chance.uniform(0.2, 1.0))
    return command.hit(signal.SIGCONT)


KILLS = ("SIGKILL, main", "SIGKILL, worker")

SIGNALS: dict[str, Callable[[Command, Random], bool]] = {
    "SIGKILL, main": kill_main,
    "SIGKILL, worker": kill_worker,
    "SIGTERM": terminate,
    "SIGHUP": hang_up,
    "SIGSTOP": stop_and_go,
}


def failing_reads(chance: Random) -> Callable[[], None]:
    """Reads of images fail now and then: a wrapper of the source in the process itself."""
    seed, share = chance.random(), chance.choice((0.02, 0.2))

    def install() -> None:
        draws, opened = Random(seed), whole_files.open_regular

        def failing(path: str | os.PathLike[str]) -> AbstractContextManager[BinaryIO]:
            if draws.random() < share:
                raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
            return opened(path)

        whole_files.open_regular = failing

    return install


def jumping_clock(chance: Random) -> Callable[[], None]:
    """The clock of the wall jumps by days, to and fro."""
    seed = chance.random()

    def install() -> None:
        draws, now = Random(seed), time.time
        time.time = lambda: now() + draws.choice((-1, 0, 0, 1)) * 86_400.0 * draws.randrange(400)

    return install


def small_files(chance: Random) -> Callable[[], None]:
    """No file may grow beyond a limit: a full disk for those who may not mount one."""
    size = chance.choice((2**12, 2**17, 2**19, 2**20))

    def install() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return install


INSTALLED = {"failing reads": failing_reads, "clock jumps": jumping_clock}
"""What is wrong from the beginning, and gone when the run is resumed."""


class SmallDisk:
    """A file system in memory with little room."""

    def __init__(self, folder: Path, kilobytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._mount("-o", f"size={kilobytes}k", "-t", "tmpfs", "tmpfs", str(folder))

    def enlarge(self) -> None:
        self._mount("-o", "remount,size=2g", str(self.folder))

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)

    @staticmethod
    def _mount(*arguments: str) -> None:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[SmallDisk | None]:
    """The disk, or nothing where this user may not mount."""
    try:
        disk = SmallDisk(folder, kilobytes)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield disk
    finally:
        disk.close()


def two_places() -> list[dict[str, str]]:
    """The environments of two processes that train together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    counts = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [{"RANK": str(n), "LOCAL_RANK": str(n), **counts, **meeting} for n in range(2)]
