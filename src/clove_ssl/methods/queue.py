"""A first-in, first-out bank of feature rows, equal on all processes.

Dimensions: S entries, D channels, N new rows, R = N times the processes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clove_ssl.layers.collectives import gather_rows
from clove_ssl.layers.normalization import unit_vectors


class FeatureQueue(nn.Module):
    """The last ``size`` rows that were put in.

    Everything is a buffer, so a resumed run continues with the same bank, and
    nothing is read back from the device.
    """

    entries: Tensor
    pointer: Tensor
    filled: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("entries", torch.zeros(size, dim))  # (S, D)
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))  # next slot
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))

    def usable(self) -> Tensor:
        """The slots that hold a row: (S,) bool, all true once the queue was filled."""
        slots = torch.arange(len(self.entries), device=self.entries.device)
        return slots < self.filled

    @torch.no_grad()
    def enqueue(self, rows: Tensor) -> None:
        """Put in the (N, D) rows of every process, in rank order, over the oldest ones."""
        gathered = gather_rows(rows.detach().to(self.entries.dtype))  # (R, D)
        size, total = len(self.entries), len(gathered)
        # Places are computed on the device. The usual copy into a slice needs the pointer on the
        # host, which would wait for the GPU in every step.
        kept = gathered[-size:]  # of more rows than slots only the last survive
        first = self.pointer + (total - len(kept))
        slots = (first + torch.arange(len(kept), device=kept.device)) % size
        self.entries.index_copy_(0, slots, kept)
        self.pointer.add_(total).remainder_(size)
        self.filled.add_(total).clamp_(max=size)


class KeyBank(FeatureQueue):
    """A queue that begins full of random unit vectors.

    So there are equally many negatives from the first step on; the loss is small
    until real keys, which resemble each other, have taken their places. Keys
    wait in :meth:`collect` until the step is done, so that micro-batches of one
    step meet the same negatives.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(size, dim)
        # Drawn from the generator that the seed has set, so all processes begin with the same bank.
        self.entries.copy_(unit_vectors(torch.randn(size, dim)))
        self.filled.fill_(size)
        self.waiting: list[Tensor] = []

    def collect(self, rows: Tensor) -> None:
        """Keep the (N, D) keys of a micro-batch for :meth:`advance`."""
        self.waiting.append(rows.detach())

    def advance(self) -> None:
        """Put in what was collected, over the oldest entries."""
        # Micro-batch by micro-batch, as they came: the order of entries is part of what is resumed.
        for rows in self.waiting:
            self.enqueue(rows)
        self.waiting.clear()
