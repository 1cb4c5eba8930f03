"""Data workers that die: which one, of what, and how a run goes on.

torch tells of a dead worker wherever the main process happens to be, with a ``RuntimeError``
whose text is all that is known. If it dies while it hands a batch over, the main process only
notices that nobody is at the other end. A run has lost nothing then but the steps since its last
checkpoint.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_sharer

from clove_ssl.errors import UserError

_KILLED = re.compile(r"worker \(pid (\d+)\) is killed by signal: ([^.]*)")
_EXITED = re.compile(
    r"worker \(pid(?:\(s\))? ([\d, ]+)\) exited unexpectedly(?: with exit code (\d+))?"
)
_RAISED = re.compile(r"in DataLoader worker process (\d+)")
_NO_SHARED_MEMORY = re.compile(r"shared memory|unable to (?:open|write|mmap|resize)[^\n]*torch_")


_NO_MEMORY = "usually killed by the system, because machine or container had no memory left"


@contextmanager
def explained_deaths(*, workers: int, config: str, resume: str) -> Iterator[None]:
    """Say in a ``UserError`` what became of a worker, and what to lower before the run goes on.

    Args:
        workers: How many there are.
        config: The file in which they can be lowered; results do not depend on their number.
        resume: What continues the run.
    """
    with _told_deaths(
        "Nothing is lost but the steps since the last checkpoint. Where memory was short, lower "
        f"data.workers (now {workers}, try {_fewer(workers)}), data.prefetch or data.max_pixels in "
        f"{config}; the result does not depend on them, but for images above max_pixels. Go on "
        f"with: {resume}"
    ):
        yield


@contextmanager
def explained_deaths_of_reading(*, workers: int) -> Iterator[None]:
    """The same where there is no run to go on with, and the command is repeated."""
    with _told_deaths(
        f"Where memory was short, give fewer with --data.workers (now {workers}, try "
        f"{_fewer(workers)}) or --data.prefetch 1, and repeat the command."
    ):
        yield


@contextmanager
def _told_deaths(remedy: str) -> Iterator[None]:
    try:
        with _nothing_printed():
            yield
    except (RuntimeError, MemoryError) as error:
        told = _cause(error)
        if told is None:
            raise
        raise UserError(f"{told} {remedy}") from None
    except (OSError, EOFError) as error:
        if not _was_handed_over(error):
            raise
        raise UserError(f"A data worker ended suddenly, {_NO_MEMORY}. {remedy}") from None


def _was_handed_over(error: Exception) -> bool:
    """Whether a batch was being fetched from a worker when nobody answered any more."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename == resource_sharer.__file__ for frame in frames)


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Keep a death from the terminal that torch tells of where nothing can be raised.

    Its signal handler runs between any two instructions, also in what is done when an object is
    dropped, and Python then prints a traceback and goes on. Nothing is missed: whoever waits for
    the next batch of that worker is told again.
    """
    usual = sys.unraisablehook

    def hook(told: sys.UnraisableHookArgs) -> None:
        if not (isinstance(told.exc_value, RuntimeError) and _cause(told.exc_value)):
            usual(told)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def _cause(error: Exception) -> str | None:
    """What happened, or nothing where it was no death of a worker."""
    text = f"{error.__cause__} {error}"  # the signal is named in the first of two, if at all
    if raised := _RAISED.search(text):
        who = f"Data worker {raised[1]}"
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in text:
            return f"{who} found no memory for its images."
        if _NO_SHARED_MEMORY.search(text):
            return f"{who} found no room in /dev/shm, where workers leave their batches."
        return None
    if killed := _KILLED.search(text):
        return f"Data worker with process number {killed[1]} was ended: {_signal(killed[2])}."
    if exited := _EXITED.search(text):
        how = f"with exit code {exited[2]}" if exited[2] else f"suddenly, {_NO_MEMORY}"
        return f"Data worker with process number {exited[1]} ended {how}."
    return None


def _signal(name: str) -> str:
    """The name of a signal, with its usual reason."""
    reasons = {
        "Killed": _NO_MEMORY,
        "Bus error": "usually because /dev/shm, where workers leave their batches, is full",
        "Segmentation fault": "a library crashed, perhaps on a damaged image",
    }
    reason = reasons.get(name.strip())
    return f"{name.strip()} ({reason})" if reason else name.strip()


def _fewer(workers: int) -> int:
    return workers // 2  # with none the main process reads by itself
