"""A part of a feature pyramid: fine maps that know what the coarse ones saw.

Dimensions: B images, C channels of a stage, D channels of the pyramid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class PartialPyramid(nn.Module):
    """Lateral 1x1 convolutions, sums from coarse to fine, and 3x3 convolutions on some sums.

    The pyramid of detectors (``tasks/models/pyramid.py``) is another one: it hands out all levels
    and one more, may normalise them, and bears the weights of published detectors.

    Args:
        in_channels: Channels of the stages that take part, the finest first.
        out: Channels of every level.
        levels: The stages whose sums come out; those above them only pass theirs on.
    """

    def __init__(self, in_channels: Mapping[str, int], out: int, *, levels: Sequence[str]) -> None:
        super().__init__()
        self.lateral = nn.ModuleDict(
            {stage: nn.Conv2d(channels, out, 1) for stage, channels in in_channels.items()}
        )
        self.output = nn.ModuleDict({level: nn.Conv2d(out, out, 3, padding=1) for level in levels})
        for layer in [*self.lateral.values(), *self.output.values()]:
            assert isinstance(layer, nn.Conv2d)
            assert layer.bias is not None
            nn.init.kaiming_uniform_(layer.weight, a=1)  # no ReLU follows
            nn.init.zeros_(layer.bias)

    def forward(self, maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{stage: (B, C, h, w)} -> {level: (B, D, h, w)}."""
        found: dict[str, Tensor] = {}
        above: Tensor | None = None
        for stage, lateral in reversed(list(self.lateral.items())):
            here: Tensor = lateral(maps[stage])
            if above is not None:
                here = here + F.interpolate(above, size=here.shape[2:], mode="nearest")
            if stage in self.output:
                found[stage] = self.output[stage](here)
            above = here
        return found
