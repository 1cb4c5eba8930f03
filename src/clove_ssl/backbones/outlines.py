"""Networks without memory: names and shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FILLING = {Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_}


class _Unfilled(TorchFunctionMode):
    """Leave tensors as they are where a network would give them first values.

    They have none to give. Without memory torch still works out what it would do, for which it
    loads its compiler, and that takes longer than everything else.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        return args[0] if function in _FILLING else function(*args, **(kwargs or {}))


@contextmanager
def outlined() -> Iterator[None]:
    """Build networks inside: they take no memory and no random numbers, however large they are."""
    with torch.device("meta"), _Unfilled():
        yield
