"""The feature pyramid: maps of strides 4 to 64 that all know what the deepest one has seen.

Dimensions: B images, C channels, H x W cells.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.tasks.models.layers import Norm, NormedConv, start_linear


class FeaturePyramid(nn.Module):
    """Lateral 1 x 1 convolutions, added from the top down, smoothed by 3 x 3 convolutions.

    Args:
        channels: Channels of the backbone's maps by stage, the finest first.
        width: Channels of all maps of the pyramid.
        norm: Norm after each convolution.
    """

    def __init__(self, channels: Mapping[str, int], *, width: int, norm: Norm) -> None:
        super().__init__()
        self.stages = tuple(channels)
        self.laterals = nn.ModuleDict(
            {
                stage: NormedConv(count, width, 1, norm=norm, relu=False)
                for stage, count in channels.items()
            }
        )
        self.outputs = nn.ModuleDict(
            {stage: NormedConv(width, width, 3, norm=norm, relu=False) for stage in channels}
        )
        for layer in (*self.laterals.values(), *self.outputs.values()):
            assert isinstance(layer, NormedConv)
            start_linear(layer)

    def forward(self, maps: Mapping[str, Tensor]) -> list[Tensor]:
        """Maps by stage (B, C, H, W) -> (B, width, H, W) of each stage and one at half the last."""
        levels: list[Tensor] = []
        running: Tensor | None = None
        for stage in reversed(self.stages):
            lateral = self.laterals[stage](maps[stage])
            if running is not None:
                lateral = lateral + F.interpolate(running, scale_factor=2, mode="nearest")
            running = lateral
            levels.insert(0, self.outputs[stage](lateral))
        return [*levels, F.max_pool2d(levels[-1], kernel_size=1, stride=2)]
