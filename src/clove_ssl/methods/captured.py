"""What a method may say beyond learning, so that its steps can be captured as CUDA graphs.

A captured step is a list of kernels with fixed places in memory; Python runs once, when it is
recorded. So whatever Python decides in a forward pass must be the same in every step of a kind,
and what it keeps for the end of the step must be found again. A method that does not say all this
trains just the same, kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from clove_ssl.methods.base import Progress


class Capturable:
    """Beside :class:`~clove_ssl.methods.base.Method` among the bases of a method.

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


def why_not_captured(learner: object) -> str:
    """Why the steps of a learner cannot be captured; empty if they can."""
    if not isinstance(learner, Capturable):
        return "the method does not say that every step runs the same kernels"
    return learner.why_not_captured()
