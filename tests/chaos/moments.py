"""Moments of a command by how far it has come, so that no disturbance comes before or behind it.

A command counts what it does: training steps, and files that it opens, renames, makes or removes.
It tells its parent when a number was reached, and goes on; the parent hits it a little later.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
from typing import Any

from clove_ssl.training.loop import TrainingLoop

STEP = 10
"""What a training step counts."""
_HERE = tempfile.gettempdir()
_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.listdir", "os.scandir")


class Moment:
    """A number of events after which the parent is told; without a number, all are counted."""

    def __init__(self, number: int | None = None, *, counts_files: bool = True) -> None:
        self._number = number
        self._counts_files = counts_files
        self._count = 0
        self._pid = 0
        self._reader, self._writer = os.pipe()

    def install(self) -> None:
        """Count from now on, in this process alone."""
        self._pid = os.getpid()
        train_step = TrainingLoop._train_step

        def counted(loop: TrainingLoop, *args: Any) -> bool:
            self._add(STEP)
            return train_step(loop, *args)

        TrainingLoop._train_step = counted
        if self._counts_files:
            sys.addaudithook(self._hear)

    def close_in_child(self) -> None:
        """Say how many events there were, to whoever asked for the number."""
        if self._number is None:
            os.write(self._writer, str(self._count).encode())

    def wait(self, seconds: float) -> bool:
        """Whether the number is reached within some time."""
        return bool(select.select([self._reader], [], [], seconds)[0])

    def counted(self) -> int:
        """All events of a command that has ended."""
        return int(os.read(self._reader, 64) or b"1") if self.wait(0) else 1

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._reader)
        os.close(self._writer)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and os.getpid() == self._pid:
            path = arguments[0] if isinstance(arguments[0], str | bytes | os.PathLike) else ""
            if os.fsdecode(path).startswith(_HERE):  # imports do not count
                self._add(1)

    def _add(self, amount: int) -> None:
        before = self._count
        self._count += amount
        if self._number is not None and before < self._number <= self._count:
            os.write(self._writer, b"!")
