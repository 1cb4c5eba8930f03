"""Atrous spatial pyramid pooling: a map seen with several fields of view at once.

Dimensions: B images, C channels of the backbone, D channels here, h x w cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class AtrousPyramid(nn.Module):
    """Convolutions of different dilations and the image's mean, side by side, then mixed.

    Args:
        in_channels: Channels of the backbone's map.
        channels: Channels of every branch, and of the result.
        dilations: One branch each; 1 is a 1x1 convolution, others are 3x3.
    """

    def __init__(self, in_channels: int, channels: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.mean_branch = _normalized_conv(in_channels, channels, kernel=1)
        self.branches = nn.ModuleList(
            _normalized_conv(
                in_channels, channels, kernel=1 if dilation == 1 else 3, apart=dilation
            )
            for dilation in dilations
        )
        self.mix = _normalized_conv((1 + len(dilations)) * channels, channels, kernel=3)

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, D, h, w)."""
        mean = self.mean_branch(feature_map.mean((2, 3), keepdim=True))  # (B, D, 1, 1)
        seen = [branch(feature_map) for branch in self.branches]
        everywhere = mean.expand(-1, -1, *feature_map.shape[2:])
        mixed: Tensor = self.mix(torch.cat([everywhere, *seen], dim=1))
        return mixed


def _normalized_conv(in_channels: int, out: int, *, kernel: int, apart: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of a map, batch norm and ReLU."""
    padding = apart * (kernel // 2)
    conv = nn.Conv2d(in_channels, out, kernel, padding=padding, dilation=apart, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())
