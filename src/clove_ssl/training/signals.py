"""What all processes must agree on before an optimizer step.

Each process may see a loss that is not finite, or be asked to stop. One tiny
reduction per step spreads the news. Its result is copied to the host while the
backward pass runs and is read only after that pass was queued, so the device
never runs dry waiting for the answer.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch
from torch import Tensor

from clove_ssl.layers.transfers import HostCopy
from clove_ssl.training.processes import Process


@dataclass(frozen=True)
class Verdict:
    """The same on every process."""

    non_finite: bool
    stop: bool


class StopRequest:
    """Set by SIGTERM or SIGINT; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals for the duration of the loop."""
        previous = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class StepSignals:
    """Collects the flags of a step on all processes."""

    def __init__(self, process: Process, stop: StopRequest) -> None:
        self._process = process
        self._stop = stop
        self._sent: HostCopy | None = None

    def send(self, loss: Tensor) -> None:
        """Start spreading the news of this step; returns at once."""
        bad = ~torch.isfinite(loss.detach())
        flags = torch.stack([bad, torch.full_like(bad, self._stop.asked)])
        self._sent = HostCopy(self._process.maximum(flags.int()))

    def verdict(self) -> Verdict:
        """Read the flags that were sent last; does not wait for the work queued after them."""
        assert self._sent is not None, "nothing was sent"
        non_finite, stop = self._sent.read()
        return Verdict(non_finite=bool(non_finite), stop=bool(stop))
