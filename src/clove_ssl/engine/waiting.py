"""How long a device had nothing to do because its next batch was not there.

The host runs ahead of a GPU: it queues a step, asks for the next batch and waits for
it, while the GPU still works. That wait costs nothing, so the time is taken on the
clock of the GPU, from the end of the queued work to the arrival of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from clove_ssl.engine.device_clock import Moment


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
            self._spans[-1][1].wait()
        spans, self._spans = self._spans, []
        return sum(begin.milliseconds_to(end) for begin, end in spans) / 1e3
