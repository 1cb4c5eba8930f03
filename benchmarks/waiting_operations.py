"""Which operations make the host wait for a GPU, told on a CPU from their names and arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WAITING = frozenset(
    {
        *("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim"),
        *("repeat_interleave", "bincount", "nms", "is_nonzero", "equal", "unique_consecutive"),
    }
)
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


def waits(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether an operation with these arguments waits."""
    if name == "repeat_interleave":
        return options.get("output_size") is None
    if name in INDEXING:
        masks = [each for each in args[1] if isinstance(each, Tensor) and _is_mask(each)]
        # One value for all places of one mask needs no list of the places.
        return bool(masks) and not (name != "index" and args[2].numel() == 1)
    return name in WAITING


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)
