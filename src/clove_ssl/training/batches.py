"""How long a device had nothing to do because its next batch was not there.

The host runs ahead of a GPU: it queues a step, asks for the next batch and waits for
it, while the GPU still works. That wait costs nothing, so the time is taken on the
clock of the GPU, from the end of the queued work to the arrival of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from clove_ssl.console import Console


class WaitingTime:
    """Adds up waits of one device until somebody takes the sum."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[Moment, Moment]] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The batch is fetched inside, up to where the current stream may use it."""
        begin = Moment(self._device)
        yield
        self._spans.append((begin, Moment(self._device)))

    def take_seconds(self) -> float:
        """The sum since the last call."""
        if self._spans:
            # The last moment alone: those before it have passed by then.
            self._spans[-1][1].wait()
        spans, self._spans = self._spans, []
        return sum(begin.milliseconds_to(end) for begin, end in spans) / 1e3


class Moment:
    """Now: for the host, or on a GPU when all that is queued so far is done."""

    def __init__(self, device: torch.device) -> None:
        self._host = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> None:
        """Until a GPU has got there."""
        if self._event is not None:
            self._event.synchronize()

    def milliseconds_to(self, later: Moment) -> float:
        """How long it was to a later moment, which a GPU must have got to."""
        if self._event is None or later._event is None:
            return 1e3 * (later._host - self._host)
        return float(self._event.elapsed_time(later._event))


class Batches(Protocol):
    """Where the training loop gets its micro-batches from."""

    waiting: WaitingTime

    def next(self) -> Any:
        """The next micro-batch, on the device."""

    def report_bad_files(self, console: Console) -> None:
        """Name what could not be read since the last call; all processes call this."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must remember."""

    def close(self) -> None:
        """Stop reading ahead."""
