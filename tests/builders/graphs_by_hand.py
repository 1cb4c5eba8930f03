"""Graphs that a CPU can replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clove_ssl.layers.captured import CapturedFunction, Recording


@dataclass
class GraphByHand:
    """Does on a CPU what a graph does: computes anew and writes to the same places."""

    replay: Callable[[], None]


def record_by_hand(self: CapturedFunction, inputs: Sequence[Tensor]) -> Recording:
    """Stands in for ``CapturedFunction._record``; other than that, it makes passes of its own."""
    places = [each.detach().clone().requires_grad_(each.requires_grad) for each in inputs]
    taught = [number for number, place in enumerate(places) if place.requires_grad]
    outputs = self._function(*places)
    learned = [each for each in outputs if each.requires_grad]
    outer = [torch.zeros_like(each) for each in learned]
    learners = [*taught, *self._parameters]
    leaves = [*(places[number] for number in taught), *self._parameters]
    found = torch.autograd.grad(learned, leaves, outer, allow_unused=True)
    reached = [number for number, gradient in enumerate(found) if gradient is not None]
    inner = [found[number] for number in reached]
    places_out = [each.detach().clone() for each in outputs]
    last: list[tuple[Tensor, ...]] = []

    def forward() -> None:
        with torch.enable_grad():
            last[:] = [self._function(*places)]
        _write(places_out, last[0])

    def backward() -> None:
        made = [each for each in last[0] if each.requires_grad]
        _write(inner, torch.autograd.grad(made, [leaves[number] for number in reached], outer))

    graphs: Any = (GraphByHand(forward), GraphByHand(backward))
    return Recording(
        *graphs,
        inputs=[each.detach() for each in places],
        outputs=places_out,
        learned=[each.requires_grad for each in outputs],
        outer=outer,
        learners=[learners[number] for number in reached],
        inner=inner,
    )


def _write(places: Sequence[Tensor], contents: Sequence[Tensor]) -> None:
    for place, new in zip(places, contents, strict=True):
        place.copy_(new.detach())
