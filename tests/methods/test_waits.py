"""No method asks its device for a number in a step, since the host would wait for all queued work.

A GPU is not needed to see it: whatever has a result of unknown size, or becomes a
Python number, is an operation of its own. ``tests/gpu`` has the same with a real one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders.batches.two_views import two_views
from builders.runs.method_runs import TRAINED, small_method, tiny_built
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clove_ssl.methods.base import Progress

IMAGES = 8
ASKING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal"}


class Questions(TorchDispatchMode):
    """Notes the operations after which a host has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        picks = args[1] if name == "index" else ()
        if name in ASKING or any(isinstance(p, Tensor) and p.dtype == torch.bool for p in picks):
            self.asked.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "question", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero()]
)
def test_questions_are_noticed(question: Any) -> None:
    with Questions() as questions:
        question(torch.ones(3))
    assert questions.asked


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_asks_nothing(name: str) -> None:
    config = small_method(name)
    method, batch = tiny_built(config), two_views(config, images=IMAGES)
    with Questions() as questions:
        for step in range(2):  # in the second one some methods measure themselves
            method(batch, Progress(step, 10)).loss.backward()
            method.after_step(Progress(step, 10))
    assert not questions.asked
