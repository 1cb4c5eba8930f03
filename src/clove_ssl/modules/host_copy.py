"""Numbers that a device has found out and the host needs, without the device running dry."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """A few numbers on their way to the host.

    The copy begins at once. Work that is queued between it and :meth:`read` keeps
    the device busy while the host waits, and after that.
    """

    def __init__(self, numbers: Tensor) -> None:
        on_gpu = numbers.is_cuda
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=on_gpu)
        self._host.copy_(numbers.detach(), non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if on_gpu:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def read(self) -> list[int]:
        """The numbers; waits for the copy, not for the work queued after it."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers: list[int] = self._host.tolist()
        return numbers
