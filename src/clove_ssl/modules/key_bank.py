"""The negatives of contrastive methods: a full queue that moves once per optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor

from clove_ssl.modules.normalization import unit_vectors
from clove_ssl.modules.queue import FeatureQueue


class KeyBank(FeatureQueue):
    """A queue that begins full of random unit vectors.

    So there are equally many negatives from the first step on; the loss is small
    until real keys, which resemble each other, have taken their places. Keys
    wait in :meth:`collect` until the step is done, so that micro-batches of one
    step meet the same negatives.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(size, dim)
        self.entries.copy_(unit_vectors(torch.randn(size, dim)))
        self.filled.fill_(size)
        self._waiting: list[Tensor] = []

    def collect(self, rows: Tensor) -> None:
        """Keep the (N, D) keys of a micro-batch for :meth:`advance`."""
        self._waiting.append(rows.detach())

    def advance(self) -> None:
        """Put in what was collected, over the oldest entries."""
        for rows in self._waiting:
            self.enqueue(rows)
        self._waiting.clear()
