"""Why a captured detector may round otherwise than one with ``--capture never``.

Gradients of the maps come to a replay all at once, and in the layout of the maps. The first changes
no bit. The second may: convolutions choose their backward kernels by the layout of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from builders.tasks.tiny_detectors import tiny_batch, tiny_detector
from torch import Tensor

from clove_ssl.layers.captured import in_layout_of


class AllAtOnce(torch.autograd.Function):
    """Nothing, but that no gradient passes before all are there."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(each.detach() for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


class AllInLayout(AllAtOnce):
    """And that they come in the layout of their tensors."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.like = [each.detach() for each in tensors]
        return tuple(each.detach() for each in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(in_layout_of, gradients, ctx.like))


def behind(outputs: Sequence[Tensor], kind: type[AllAtOnce]) -> tuple[Tensor, ...]:
    learned = iter(kind.apply(*(each for each in outputs if each.requires_grad)))
    return tuple(next(learned) if each.requires_grad else each for each in outputs)


def gradients(kind: str, between: type[AllAtOnce] | None) -> dict[str, Tensor]:
    """Of one step of a detector, with something between its first half and the second."""
    model: Any = tiny_detector(kind).to(memory_format=torch.channels_last).train()
    if between is not None:
        model.captured = lambda *inputs: behind(
            model.first_stage(model.inputs_of(inputs)).flat(), between
        )
    torch.stack(list(model.losses(tiny_batch(), step=0).values())).sum().backward()
    found = {name: each.grad for name, each in model.named_parameters()}
    return {name: each for name, each in found.items() if each is not None}


@pytest.mark.parametrize("kind", ["fpn", "keypoints"])
def test_only_the_layout_of_gradients_changes_the_rounding(kind: str) -> None:
    plain = gradients(kind, None)
    at_once = gradients(kind, AllAtOnce)
    assert [name for name in plain if not torch.equal(plain[name], at_once[name])] == []
    in_layout = gradients(kind, AllInLayout)
    for name, gradient in plain.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(in_layout[name], gradient, rtol=1e-3, atol=1e-4 * largest)
