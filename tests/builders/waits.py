"""Finds where a GPU would make the host wait, on a CPU."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.waiting_operations import waits


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
