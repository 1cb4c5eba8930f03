"""How long a device had nothing to do because its next batch was not there.

The host runs ahead of a GPU: it queues a step, asks for the next batch and waits for
it, while the GPU still works. That wait costs nothing, so the time is taken on the
clock of the GPU, from the end of the queued work to the arrival of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class WaitingTime:
    """Adds up waits of one device until somebody takes the sum."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The batch is fetched inside, up to where the current stream may use it."""
        if not self._on_gpu:
            start = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        yield
        end.record()
        self._spans.append((begin, end))

    def take_seconds(self) -> float:
        """The sum since the last call."""
        if self._spans:
            self._spans[-1][1].synchronize()
        on_gpu = [float(begin.elapsed_time(end)) / 1e3 for begin, end in self._spans]
        seconds, self._seconds, self._spans = self._seconds + sum(on_gpu), 0.0, []
        return seconds
