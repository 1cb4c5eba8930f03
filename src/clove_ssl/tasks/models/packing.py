"""Many tensors in one block of memory, so that they travel as one.

Between processes and to a GPU every tensor costs a message of its own, whatever its size. A batch
of a detector has dozens of small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes, enough for all types


@dataclass(frozen=True)
class PackedTensors:
    """Some tensors, one behind the other."""

    block: Tensor  # (bytes,) uint8
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    def tensors(self) -> list[Tensor]:
        """The tensors, as views of the block."""
        lengths = _lengths(self.shapes, self.dtypes)
        parts = zip(self.shapes, self.dtypes, _starts(lengths), lengths, strict=True)
        return [
            self.block[start : start + length].view(dtype).view(shape)
            for shape, dtype, start, length in parts
        ]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedTensors:
        """The tensors on ``device``."""
        block = self.block.to(device, non_blocking=non_blocking)
        return PackedTensors(block, self.shapes, self.dtypes)

    def pin_memory(self) -> PackedTensors:
        """The tensors in page-locked memory."""
        return PackedTensors(self.block.pin_memory(), self.shapes, self.dtypes)


def pack(tensors: Sequence[Tensor]) -> PackedTensors:
    """Copy tensors of the host into one block."""
    shapes = tuple(tuple(each.shape) for each in tensors)
    dtypes = tuple(each.dtype for each in tensors)
    lengths = _lengths(shapes, dtypes)
    size = _starts([*lengths, 0])[-1]
    packed = PackedTensors(torch.empty(size, dtype=torch.uint8), shapes, dtypes)
    for place, tensor in zip(packed.tensors(), tensors, strict=True):
        place.copy_(tensor)
    return packed


def _lengths(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]) -> list[int]:
    """Bytes of each tensor."""
    return [prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]


def _starts(lengths: Sequence[int]) -> list[int]:
    """Where each tensor begins."""
    starts, end = [], 0
    for length in lengths:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + length
    return starts
