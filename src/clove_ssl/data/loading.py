"""Worker processes that read micro-batches ahead, in exactly the order of the run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader, Sampler

from clove_ssl.cores import available_cores, describe_cores
from clove_ssl.data.cache.store import PhotoTable
from clove_ssl.data.order import BatchOrder, Draws
from clove_ssl.data.reading import BatchReader

Batch = TypeVar("Batch")

_GLANCE = 1.0  # seconds between looks at the main process


class WorkerChoice(Protocol):
    """A config that says how many worker processes to use, or leaves it open."""

    @property
    def workers(self) -> int | None: ...


class _OrderedBatches(Sampler[Draws]):
    """The micro-batches of this process, from a step on, in order."""

    def __init__(self, order: BatchOrder, *, start_step: int, total_steps: int) -> None:
        self._order = order
        self._steps = range(start_step, total_steps)

    def __iter__(self) -> Iterator[Draws]:
        for step in self._steps:
            for number in range(self._order.micro_batches):
                yield self._order.draws(step, number)

    def __len__(self) -> int:
        return len(self._steps) * self._order.micro_batches


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
    return DataLoader(
        reader,
        # The reader makes whole batches: one message per batch between processes, not one per
        # image.
        batch_size=None,
        sampler=_OrderedBatches(order, start_step=start_step, total_steps=total_steps),
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
        batches = iter(self._load(self._start_step, self._workers))
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
) -> tuple[int, str]:
    """Worker processes for this training process, and why."""
    if config.workers is not None:
        return config.workers, "as asked"
    share = available_cores() // processes_here
    if trains_on_cpu:
        return _few(share // 2), f"{describe_cores()}, half for training"
    return _few(share), describe_cores()


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
