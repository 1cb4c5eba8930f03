"""What a method may say beyond learning, so that its networks can be compiled.

A method that does not say it trains just the same, uncompiled.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn


class Compilable:
    """Beside :class:`~clove_ssl.methods.base.Method` among the bases of a method."""

    goes_back_twice: bool = False
    """Whether some steps go back through the encoders several times, which compiled ones allow
    where they know it."""

    def encoders(self) -> tuple[nn.Module, ...]:
        """The networks that see images; each is cut into pieces that are compiled on their own."""
        raise NotImplementedError

    def fixed_shape_parts(self) -> tuple[nn.Module, ...]:
        """Modules behind the encoders whose tensors have the same shapes in every step.

        Every other shape would be compiled anew, unless only the length of a first axis changes
        and :func:`mark_any_length` says so.
        """
        return ()

    def before_compilation(self) -> None:
        """Called before anything is compiled: encoders may run in another way from then on."""


class EncoderInputs(NamedTuple):
    """What goes through the encoders of student and teacher in a step, pass by pass."""

    student: list[Tensor]
    teacher: list[Tensor]


def mark_any_length(tensor: Tensor) -> Tensor:
    """Let one graph serve all lengths of the first axis from 2 on; the same tensor.

    Lengths of 0 and 1 are cases of their own for torch's compiler, and get graphs of their own.
    """
    import torch._dynamo  # takes seconds, and most runs compile nothing

    if len(tensor) > 1:
        torch._dynamo.mark_dynamic(tensor, 0)
    return tensor


def has_any_length(tensor: Tensor) -> bool:
    """Whether a tensor is so marked."""
    return 0 in getattr(tensor, "_dynamo_dynamic_indices", ())
