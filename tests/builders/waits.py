"""Finds where a GPU would make the host wait, on a CPU."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = frozenset(
    {
        *("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim"),
        *("unique_consecutive", "bincount", "nms", "is_nonzero", "equal", "repeat_interleave"),
    }
)
INDEXING = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})


class Waits(TorchDispatchMode):
    """Counts operations whose result has a size or a value that the host must know."""

    def __init__(self) -> None:
        super().__init__()
        self.places: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if waits(func._schema.name.split("::")[1], args, kwargs or {}):
            self.note()
        return func(*args, **(kwargs or {}))

    def note(self) -> None:
        """Remember the file of the package that asked."""
        own = [f.filename for f in traceback.extract_stack() if "/clove_ssl/" in f.filename]
        self.places[Path(own[-1]).name if own else "elsewhere"] += 1


@contextmanager
def waits_counted(*, on_host: Tensor) -> Iterator[Counter[str]]:
    """Waits by file; ``tolist``, which is no operation, counts but for a tensor of the host."""
    counting, plain = Waits(), Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        if tensor is not on_host:
            counting.note()
        return plain(tensor)

    with counting, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "tolist", tolist)
        yield counting.places


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
