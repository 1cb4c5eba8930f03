"""What is computed for every region: its vector, its mask, its keypoints.

Dimensions: R regions, C channels, S x S cells of a pooled region, K classes, P keypoints.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.config.detection import BoxHeadConfig, KeypointHeadConfig, MaskHeadConfig
from clove_ssl.tasks.rcnn.layers import Norm, NormedConv, start_for_relu, start_linear, start_small


class BoxHead(nn.Module):
    """Convolutions and fully connected layers that turn a region into a vector.

    Args:
        config: Numbers and widths of the layers.
        in_channels: Channels of a pooled region.
        side: Cells of its side.
        norm: Norm of the convolutions.
    """

    def __init__(self, config: BoxHeadConfig, in_channels: int, *, side: int, norm: Norm) -> None:
        super().__init__()
        self.convs = _convs(config.convs, in_channels, config.conv_width, norm=norm)
        channels = config.conv_width if config.convs else in_channels
        widths = [channels * side * side, *[config.fc_width] * config.fcs]
        self.fcs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.out_features = widths[-1]
        for layer in self.fcs:
            assert isinstance(layer, nn.Linear)
            start_linear(layer)

    def forward(self, regions: Tensor) -> Tensor:
        """(R, C, S, S) -> (R, out_features)."""
        vectors: Tensor = self.convs(regions).flatten(1)  # (R, C * S * S)
        for layer in self.fcs:
            vectors = F.relu(layer(vectors))
        return vectors


class MaskHead(nn.Module):
    """Convolutions, an upsampling by two, and one map per class.

    Args:
        config: Number and width of the convolutions.
        in_channels: Channels of a pooled region.
        num_classes: Classes without the background.
        norm: Norm of the convolutions.
    """

    def __init__(
        self, config: MaskHeadConfig, in_channels: int, *, num_classes: int, norm: Norm
    ) -> None:
        super().__init__()
        self.convs = _convs(config.convs, in_channels, config.width, norm=norm)
        channels = config.width if config.convs else in_channels
        self.deconv = nn.ConvTranspose2d(channels, config.width, 2, stride=2)
        self.predictor = nn.Conv2d(config.width, num_classes, 1)
        start_for_relu(self.deconv)
        start_small(self.predictor, std=0.001)

    def forward(self, regions: Tensor, classes: Tensor) -> Tensor:
        """(R, C, S, S) -> logits of the classes (R,) alone: (R, 2S, 2S).

        With a thousand classes, the maps of all of them would take most of a training step.
        """
        maps = F.relu(self.deconv(self.convs(regions)))  # (R, C, 2S, 2S)
        weights = self.predictor.weight[classes].flatten(1).to(maps.dtype)  # (R, C)
        bias = self.predictor.bias
        assert bias is not None
        return torch.einsum("rcyx,rc->ryx", maps, weights) + bias[classes, None, None]


class KeypointHead(nn.Module):
    """Convolutions, and an upsampling by four to one map per keypoint.

    Args:
        config: Number and width of the convolutions.
        in_channels: Channels of a pooled region.
        num_keypoints: Keypoints of an object.
    """

    def __init__(self, config: KeypointHeadConfig, in_channels: int, *, num_keypoints: int) -> None:
        super().__init__()
        self.convs = _convs(config.convs, in_channels, config.width, norm="none")
        channels = config.width if config.convs else in_channels
        self.deconv = nn.ConvTranspose2d(channels, num_keypoints, 4, stride=2, padding=1)
        start_for_relu(self.deconv)

    def forward(self, regions: Tensor) -> Tensor:
        """(R, C, S, S) -> logits (R, P, 4S, 4S)."""
        maps = self.deconv(self.convs(regions))  # (R, P, 2S, 2S)
        return F.interpolate(maps, scale_factor=2, mode="bilinear", align_corners=False)


def _convs(count: int, in_channels: int, width: int, *, norm: Norm) -> nn.Sequential:
    layers = [
        NormedConv(width if number else in_channels, width, 3, norm=norm, relu=True)
        for number in range(count)
    ]
    for layer in layers:
        start_for_relu(layer)
    return nn.Sequential(*layers)
