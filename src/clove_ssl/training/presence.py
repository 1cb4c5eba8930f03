"""Processes of a run that notice when one of the others is gone.

A process that waits for others in a sum of gradients cannot tell a slow one from a dead one, and
would wait for hours. So each counts up a number of its own in the store that all of them share,
and a thread looks at the numbers of the others. Where one stands still for too long, or the store
itself is gone, the thread says so and ends its process: the one that waits cannot be woken.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

LONGEST_SILENCE = 300.0
"""Seconds; compiling or a slow disk keeps a process busy, but not its thread."""
_INTERVAL = 5.0
EXIT_CODE = 3


class Store(Protocol):
    """What is needed of ``torch.distributed.Store``."""

    def add(self, key: str, amount: int, /) -> int: ...


class Presence:
    """The thread of a process that shows itself and watches the others."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        *,
        lost: Callable[[str], None],
        silence: float = LONGEST_SILENCE,
        interval: float = _INTERVAL,
    ) -> None:
        self._store, self._rank = store, rank
        self._others = [other for other in range(world_size) if other != rank]
        self._lost = lost
        self._silence, self._interval = silence, interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Presence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the thread go; all processes of a run end together."""
        self._ended.set()

    def _watch(self) -> None:
        now = time.monotonic()
        seen = dict.fromkeys(self._others, (0, now))  # count, and when it was new
        while not self._ended.wait(self._interval):
            try:
                self._store.add(_key(self._rank), 1)
                counts = {other: self._store.add(_key(other), 0) for other in self._others}
            except Exception:  # whatever a store says whose host is gone
                if not self._ended.wait(self._interval):  # and not just the end of the run
                    self._lost("the first process, or the connection to it, is gone")
                return
            now = time.monotonic()
            for other, count in counts.items():
                if count != seen[other][0]:
                    seen[other] = count, now
                elif now - seen[other][1] > self._silence:
                    self._lost(f"nothing was heard of process {other} for {self._silence:.0f} s")
                    return


def _key(rank: int) -> str:
    return f"clove_presence/{rank}"


@contextmanager
def noticing_losses(rank: int, world_size: int) -> Iterator[None]:
    """End this process, with a message, when one of the others is gone."""
    from torch.distributed import distributed_c10d

    # A connection of its own: the main thread may wait for a key, and would keep others out.
    store: Store = distributed_c10d._get_default_store().clone()
    with Presence(store, rank, world_size, lost=lambda why: _end(rank, why)):
        yield


def _end(rank: int, why: str) -> None:
    """The main thread waits where no exception reaches it; files are whole at any moment."""
    sys.stderr.write(f"clove: process {rank} ends, because {why}. {GO_ON}\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


GO_ON = (
    "Nothing is lost but the steps since the last checkpoint: see what became of the other "
    "process, then start all of them again with clove resume RUN."
)
