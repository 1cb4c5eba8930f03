"""Ctrl-C is answered at once, whatever the program is doing.

Python runs a signal handler between two of its own instructions, and a backward pass on a CPU is
one instruction that may take minutes. But the interpreter writes the number of a signal to a pipe
the moment it comes, and a thread that reads the pipe can answer while the pass goes on. The
thread only speaks; what happens is up to the handler. A second Ctrl-C that finds the program still
inside such an instruction ends the process: files are complete or not there, so nothing breaks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPING = "stopping; press Ctrl-C again to stop now"
STOPPING_NOW = "stopping now"
GRACE = 3.0
"""Seconds that a second Ctrl-C leaves the program to end by itself."""

_END = b"\0"  # no signal has this number

_answers: list[str] = [STOPPING]
"""What the first Ctrl-C is answered with; the last one counts."""


@contextmanager
def caught(
    handler: Callable[[int, FrameType | None], None], *, interrupts: bool = False
) -> Iterator[None]:
    """Meanwhile requests to end go to a handler, and Ctrl-C as well if it takes ``interrupts``."""
    numbers = [signal.SIGINT, signal.SIGTERM] if interrupts else [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is what nohup asks for
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in previous.items():
            signal.signal(number, usual)


@contextmanager
def answered_with(text: str) -> Iterator[None]:
    """Meanwhile Ctrl-C is answered with this."""
    _answers.append(text)
    try:
        yield
    finally:
        _answers.remove(text)


@contextmanager
def answering(say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Answer signals while the program runs; only its main thread can ask for this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listener = _Listener(say or _say)
    previous = signal.set_wakeup_fd(listener.write_end, warn_on_full_buffer=False)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        listener.stop()


class _Listener(threading.Thread):
    """Reads numbers of signals from a pipe, and answers."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self.write_end, False)
        self._say = say
        self._process = os.getpid()
        self._interrupts = 0

    def run(self) -> None:
        while (number := os.read(self._read_end, 1)) != _END:
            if number[0] in (signal.SIGINT, signal.SIGTERM):
                self._answer(number[0])

    def stop(self) -> None:
        """End the thread; closing the pipe would not, since workers have copies of it."""
        os.set_blocking(self.write_end, True)
        os.write(self.write_end, _END)
        self.join()
        os.close(self.write_end)
        os.close(self._read_end)

    def _answer(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            self._say(STOPPING_NOW)
            timer = threading.Timer(GRACE, self._end)
            timer.daemon = True  # a program that ends by itself does not wait for it
            timer.start()
        else:
            self._say(_answers[-1])

    def _end(self) -> None:
        """The program is still here: whatever it is inside of does not let it end."""
        if os.getpid() != self._process:
            return
        for worker in multiprocessing.active_children():  # they would wait for ever
            worker.kill()
        os._exit(130)


def _say(text: str) -> None:
    """To the terminal, below a line that may be open; only the first of several processes."""
    if os.environ.get("RANK", "0") == "0":
        with suppress(OSError):
            os.write(2, f"\nclove: {text}\n".encode())
