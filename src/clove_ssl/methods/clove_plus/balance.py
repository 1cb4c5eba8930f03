"""How strong two parts of a loss pull at the same map, measured now and then.

    r = |gradient of the one part at the map| / |gradient of the other part at the map|

A weight of r makes the other part pull as hard as the one. Norms are taken over
all micro-batches of a step and over all processes, so r is that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clove_ssl.layers.collectives import mean_over_processes
from clove_ssl.layers.fp32 import at_least_fp32

SCALE = 1024.0  # of both losses while they are measured: small gradients would be zero in fp16


class GradientBalance(nn.Module):
    """The smoothed ratio r; both buffers are part of a checkpoint.

    Args:
        start: The ratio until the first measurement, which replaces it.
        every: Steps between measurements. The first is in the second step of a run.
        keep: Share of the old ratio in the new one.
    """

    ratio: Tensor
    measurements: Tensor

    def __init__(self, *, start: float, every: int, keep: float) -> None:
        super().__init__()
        self.register_buffer("ratio", torch.tensor(start))
        self.register_buffer("measurements", torch.zeros((), dtype=torch.int64))
        self._every = every
        self._keep = keep
        self.squares: list[Tensor] = []

    def wants(self, step: int) -> bool:
        """Whether the step that begins after ``step`` steps is measured."""
        # Not the first step: heads that have learned nothing pull in any direction.
        return step > 0 and step % self._every == 1 % self._every

    def note(self, one: Tensor, other: Tensor, maps: Sequence[Tensor]) -> None:
        """Measure two losses of a micro-batch; their graphs stay, for the step's own pass."""
        self.squares.append(torch.stack([squared_norm(loss, maps) for loss in (one, other)]))

    @torch.no_grad()
    def update(self) -> None:
        """Take the measurements of all micro-batches into the ratio, once in a step."""
        if not self.squares:
            return
        # Squares add up over micro-batches, since their maps are different ones; norms do not.
        squares = torch.stack(self.squares).sum(0)  # (2,)
        self.squares.clear()
        squares = mean_over_processes(squares)
        found = (squares[0] / squares[1]).sqrt().to(self.ratio.dtype)
        # In fp16 a gradient can be infinite for once, as the step's own; such a one says nothing.
        usable = found.isfinite() & (found > 0)
        kept = torch.where(self.measurements > 0, self._keep, 0.0)
        smoothed = kept * self.ratio + (1 - kept) * found
        self.ratio.copy_(torch.where(usable, smoothed, self.ratio))
        self.measurements.add_(usable)


def squared_norm(loss: Tensor, maps: Sequence[Tensor]) -> Tensor:
    """Squared length of the gradient of a loss at all maps together, times a constant."""
    # Only as far as the maps, which is a small part of a backward pass.
    gradients = torch.autograd.grad(SCALE * loss, maps, retain_graph=True)
    return torch.stack([at_least_fp32(each).square().sum() for each in gradients]).sum()
