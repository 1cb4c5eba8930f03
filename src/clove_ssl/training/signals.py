"""What is asked of a run from outside, where no training loop listens."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """The process was asked to end: SIGTERM, or a terminal that was closed."""


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end what is going on as Ctrl-C does, and be cleaned up behind."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is what nohup asks for
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
