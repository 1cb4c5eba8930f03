"""Shuffled batch norm for networks that give several tensors.

Dimensions: B images of a process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from clove_ssl.modules.shuffling import Shuffling, forward_shuffled


def forward_parts_shuffled(
    network: Callable[[Tensor], Sequence[Tensor]], images: Tensor, **shuffling: Unpack[Shuffling]
) -> tuple[Tensor, ...]:
    """:func:`forward_shuffled` for several outputs of one type, each (B, ...).

    They travel between processes as one row per image.
    """
    shapes: list[torch.Size] = []

    def as_rows(group: Tensor) -> Tensor:
        parts = network(group)
        shapes[:] = [part.shape[1:] for part in parts]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    rows = forward_shuffled(as_rows, images, **shuffling)
    parts = torch.split(rows, [shape.numel() for shape in shapes], dim=1)
    return tuple(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True))
