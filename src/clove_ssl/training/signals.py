"""What is asked of a run from outside, where no training loop listens."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from clove_ssl.interrupts import caught

_AGAIN = 0.05  # seconds


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal: SIGTERM, or that of a closed terminal."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is going on as Ctrl-C does, and be cleaned up behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated(number)

    with caught(stop), _asking_again():
        yield


@contextmanager
def _asking_again() -> Iterator[None]:
    """Repeat a signal whose exception came where Python ignores them, as in finalizers."""
    usual, timers = sys.unraisablehook, list[threading.Timer]()

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, Terminated):
            usual(ignored)
            return
        [number] = ignored.exc_value.args
        timers.append(threading.Timer(_AGAIN, os.kill, (os.getpid(), number)))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual
        for timer in timers:
            timer.cancel()
