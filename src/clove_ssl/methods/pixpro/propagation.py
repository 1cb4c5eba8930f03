"""Pixel propagation: smooth a feature map over the cells that look alike.

    y_i = sum_j max(cos(x_i, x_j), 0) ** power * g(x_j) / |g(x_j)|

There is no softmax and no division by the sum of the weights; whoever compares
cells of ``y`` scales them to unit length anyway.

Dimensions: B images, D channels, L = h * w cells.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from clove_ssl.layers.normalization import unit_vectors

ROOT_GUARD = 1e-6  # keeps the slope of a root finite at 0, as in the released code


class PixelPropagation(nn.Module):
    """Mix each cell with the cells of its view that are similar to it.

    Args:
        dim: Channels of the feature map, kept by the output.
        power: Positive cosines are raised to this power; higher is sharper.
        transform: g is a 1x1 convolution (``linear``) or the identity (``none``).
    """

    def __init__(
        self, dim: int, *, power: float = 2.0, transform: Literal["linear", "none"] = "linear"
    ) -> None:
        super().__init__()
        if power <= 0:
            raise ValueError(f"power={power} must be above 0")
        self.power = power
        self.transform: nn.Module = nn.Identity()
        if transform == "linear":
            self.transform = nn.Conv2d(dim, dim, 1)

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, D, h, w) -> (B, D, h, w)."""
        values = unit_vectors(self.transform(feature_map), dim=1).flatten(2)  # (B, D, L)
        weights = self.weights(feature_map)
        # Up to 49 products of one sign are added, where half precision would lose digits.
        with torch.autocast(feature_map.device.type, enabled=False):
            return (values @ weights).reshape(feature_map.shape)  # weights are symmetric

    def weights(self, feature_map: Tensor) -> Tensor:
        """How much each cell (row) takes from every cell (column): (B, L, L), symmetric."""
        with torch.autocast(feature_map.device.type, enabled=False):
            cells = unit_vectors(feature_map, dim=1).flatten(2)  # (B, D, L)
            alike = (cells.mT @ cells).clamp(min=0)  # (B, L, L)
            if self.power < 1:
                # Below a power of 1 the slope at 0 is infinite, and the clamp makes many an exact
                # 0.
                alike = alike + ROOT_GUARD
            return alike**self.power
