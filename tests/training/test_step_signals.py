"""A request to stop that comes during the backward pass, which is most of a step on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from clove_ssl.training.loop import StepSignals, StopRequest
from clove_ssl.training.processes import Process


class Pair(Process):
    """One of two processes, whose other one has no news."""

    def maximum(self, values: Tensor) -> Tensor:
        return values


@pytest.mark.parametrize(("kind", "world_size"), [(Process, 1), (Pair, 2)])
def test_one_process_stops_after_this_step_and_several_after_the_next(
    kind: type[Process], world_size: int
) -> None:
    stop = StopRequest()
    signals = StepSignals(kind(0, world_size, 0, world_size, torch.device("cpu")), stop)
    signals.send(torch.tensor(1.0))
    assert not signals.verdict().stop
    signals.send(torch.tensor(1.0))
    stop.asked = True
    assert signals.verdict().stop == (world_size == 1)
    signals.send(torch.tensor(1.0))
    assert signals.verdict().stop
