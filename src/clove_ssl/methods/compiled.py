"""What a method may say beyond learning, so that networks are compiled and steps captured.

Both stand beside :class:`~clove_ssl.methods.base.Method` among the bases of a method. One that says
nothing of it trains just the same, uncompiled and kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

if TYPE_CHECKING:
    from clove_ssl.methods.base import Progress


class Compilable:
    """A method whose networks can be compiled."""

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


class Capturable:
    """A method whose steps can be captured as CUDA graphs.

    A captured step is a list of kernels with fixed places in memory; Python runs once, when it is
    recorded. So whatever Python decides in a forward pass must be the same in every step of a kind,
    and what it keeps for the end of the step must be found again.

    Between ``before_forward`` and ``after_step``, which stay Python, only the batch, parameters
    and buffers may differ between two steps of a kind.
    """

    def why_not_captured(self) -> str:
        """What changes from step to step with this config; empty if nothing does."""
        return ""

    def step_kind(self, progress: Progress) -> Hashable:
        """Steps of one kind run the same kernels."""
        return None

    def left_by_forward(self) -> Sequence[list[Tensor]]:
        """Lists that a forward pass fills and ``after_step`` empties."""
        return ()


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
