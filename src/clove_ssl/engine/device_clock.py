"""Moments on the clock of a device."""

from __future__ import annotations

import time

import torch


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
