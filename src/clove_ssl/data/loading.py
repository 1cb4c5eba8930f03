"""Worker processes that read micro-batches ahead, in exactly the order of the run.

torch tells of a dead worker wherever the main process happens to be, with a ``RuntimeError``
whose text is all that is known. If it dies while it hands a batch over, the main process only
notices that nobody is at the other end. A run has lost nothing then but the steps since its last
checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_sharer
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from clove_ssl.config.choice import Choice
from clove_ssl.cores import available_cores, describe_cores
from clove_ssl.data.kept_photos import PhotoTable
from clove_ssl.data.order import BatchOrder
from clove_ssl.data.reading import BatchReader
from clove_ssl.errors import UserError

T = TypeVar("T")
Batch = TypeVar("Batch")

_GLANCE = 1.0  # seconds between looks at the main process

# What torch says of workers that are gone.
_KILLED = re.compile(r"worker \(pid (\d+)\) is killed by signal: ([^.]*)")
_EXITED = re.compile(
    r"worker \(pid(?:\(s\))? ([\d, ]+)\) exited unexpectedly(?: with exit code (\d+))?"
)
_RAISED = re.compile(r"in DataLoader worker process (\d+)")
_NO_SHARED_MEMORY = re.compile(r"shared memory|unable to (?:open|write|mmap|resize)[^\n]*torch_")
_NO_MEMORY = "usually killed by the system, because machine or container had no memory left"


class WorkerChoice(Protocol):
    """A config that says how many worker processes to use, or leaves it open."""

    @property
    def workers(self) -> int | None: ...


class InOrder(Sampler[T]):
    """What ``take`` gives for the micro-batches of this process, from a step on, in order."""

    def __init__(self, take: Callable[[int, int], T], steps: range, *, micro_batches: int) -> None:
        self._take, self._steps, self._micro_batches = take, steps, micro_batches

    def __iter__(self) -> Iterator[T]:
        for step in self._steps:
            for number in range(self._micro_batches):
                yield self._take(step, number)

    def __len__(self) -> int:
        return len(self._steps) * self._micro_batches


def load_batches(
    reader: BatchReader[Batch],
    order: BatchOrder,
    *,
    workers: int,
    prefetch: int,
    start_step: int,
    total_steps: int,
    pin_memory: bool,
) -> DataLoader[Batch]:
    """All micro-batches of this process from ``start_step`` on."""
    draws = InOrder(order.draws, range(start_step, total_steps), micro_batches=order.micro_batches)
    return read_ahead(reader, draws, workers=workers, prefetch=prefetch, pin_memory=pin_memory)


def read_ahead(
    reader: Dataset[Batch],
    wanted: Iterable[object],
    *,
    workers: int,
    prefetch: int,
    pin_memory: bool,
) -> DataLoader[Batch]:
    """What a reader makes of each of ``wanted``, in their order."""
    return DataLoader(
        reader,
        # The reader makes whole batches: one message per batch between processes, not one per
        # image.
        batch_size=None,
        sampler=wanted,
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        pin_memory=pin_memory,
        worker_init_fn=start_worker,
        generator=torch.Generator(),  # else starting an iterator would move the global one
    )


class WorkersUntilKept(Generic[Batch]):
    """Batches that workers read until every photo is kept, and this process from then on.

    Args:
        load: The loader from a step on, with this many workers.
        table: Which photos are kept.
        workers: To begin with.
        start_step: The first step.
        micro_batches: Batches of a step.
    """

    def __init__(
        self,
        load: Callable[[int, int], DataLoader[Batch]],
        table: PhotoTable,
        *,
        workers: int,
        start_step: int,
        micro_batches: int,
    ) -> None:
        self._load = load
        self._table = table
        self._workers = workers
        self._start_step = start_step
        self._micro_batches = micro_batches

    def __iter__(self) -> Iterator[Batch]:
        taken = 0
        workers = 0 if self._table.is_complete else self._workers
        batches = iter(self._load(self._start_step, workers))
        try:
            for taken, batch in enumerate(batches, 1):
                yield batch
                # Only between steps: the loader that goes on begins with a whole one.
                if self._table.is_complete and taken % self._micro_batches == 0:
                    break
        finally:
            end_workers(batches)
        yield from self._load(self._start_step + taken // self._micro_batches, 0)


def choose_workers(
    config: WorkerChoice, *, processes_here: int, trains_on_cpu: bool
) -> Choice[int]:
    """Worker processes for this training process."""
    if config.workers is not None:
        return Choice(config.workers, "as asked")
    share = available_cores() // processes_here
    if trains_on_cpu:
        return Choice(_few(share // 2), f"{describe_cores()}, half for training")
    return Choice(_few(share), describe_cores())


def _few(workers: int) -> int:
    return max(1, min(16, workers))


def end_workers(batches: Iterator[object]) -> None:
    """End the processes behind a loader's iterator, or behind a generator that has one.

    torch does so when the iterator is collected, which a kept traceback puts off for good. At the
    end of the program nobody could: workers ignore signals, and would be waited for.
    """
    for name in ("_shutdown_workers", "close"):
        end = getattr(batches, name, None)
        if end is not None:
            end()


@contextmanager
def ended(batches: Iterator[Batch]) -> Iterator[Iterator[Batch]]:
    """Batches whose workers end with the block, where errors can still be raised."""
    try:
        yield batches
    finally:
        end_workers(batches)


def batches_of(loader: DataLoader[Batch]) -> Generator[Batch]:
    """The batches of a loader, whose workers end with the iteration, however that ends."""
    batches = iter(loader)
    try:
        yield from batches
    finally:
        end_workers(batches)


def start_worker(number: int) -> None:
    """Signals are for the main process, which ends its workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Workers are as many as there are cores; threads of each would only get in each other's way.
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        sys.excepthook = silent_without(parent.pid)
        threading.Thread(target=_end_with, args=(parent.pid,), daemon=True).start()


def silent_without(parent: int) -> Callable[..., None]:
    """A hook for errors of threads: those of talking to a main process that was killed are none.

    It may be killed while it fetches a batch, and its sockets close a moment before it is gone.
    """

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        until = time.monotonic() + _GLANCE
        while issubclass(kind, (OSError, EOFError)) and time.monotonic() < until:
            if os.getppid() != parent:
                return
            time.sleep(_GLANCE / 20)
        sys.__excepthook__(kind, error, trace)

    return say


def _end_with(parent: int) -> None:
    """End this worker when its main process is gone, however it went.

    A main process that was killed tells nobody. torch notices, but then waits until everything has
    been sent, to a pipe that nobody reads any more, and the worker would stay for good.
    """
    while os.getppid() == parent:
        time.sleep(_GLANCE)
    # Not ``sys.exit``, which ends this thread alone, and would wait for the pipe.
    os._exit(1)


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
