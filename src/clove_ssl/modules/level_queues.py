"""A queue of earlier keys for every level of a network.

Dimensions: B images, M levels, S entries, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from clove_ssl.modules.key_bank import KeyBank


class LevelQueues(nn.Module):
    """M queues that are fed together."""

    def __init__(self, levels: int, size: int, dim: int) -> None:
        super().__init__()
        self.banks = nn.ModuleList(KeyBank(size, dim) for _ in range(levels))

    def entries(self) -> list[Tensor]:
        """The negatives of every level, M x (S, D)."""
        return [bank.entries for bank in self._each()]

    def collect(self, rows: Tensor) -> None:
        """Keep the keys (B, M, D) of a micro-batch until the step is done."""
        for bank, level in zip(self._each(), rows.unbind(1), strict=True):
            bank.collect(level)

    def _each(self) -> Iterator[KeyBank]:
        for bank in self.banks:
            assert isinstance(bank, KeyBank)
            yield bank
