"""Small networks on top of a feature map.

Dimensions: B images, C channels of the backbone, D channels of an embedding.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.fused_norm.activation import normalize, normalize_relu


class ConvProjector(nn.Module):
    """Two 1x1 convolutions with batch norm between and, usually, after them.

    Args:
        in_channels: Channels of the backbone's map.
        hidden: Channels between the convolutions.
        out: Channels of a local embedding.
        bias: Give the convolutions a bias; batch norm right after one makes it useless.
        last_norm: Batch norm on the output: ``plain`` without scale and shift, ``affine``
            with them, or ``none``.
    """

    def __init__(
        self,
        in_channels: int,
        hidden: int,
        out: int,
        *,
        bias: bool = False,
        last_norm: Literal["plain", "affine", "none"] = "plain",
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, hidden, 1, bias=bias)
        self.norm1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, out, 1, bias=bias)
        self.norm2: nn.Module = nn.Identity()
        if last_norm != "none":
            self.norm2 = nn.BatchNorm2d(out, affine=last_norm == "affine")

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, D, h, w)."""
        hidden = normalize_relu(self.norm1, self.conv1(feature_map))
        return normalize(self.norm2, self.conv2(hidden))


class MLPHead(nn.Module):
    """Two linear layers with a ReLU between them, after batch norm where asked for.

    Args:
        in_channels: Length of an input vector.
        hidden: Width between the layers; 0 is that of the input.
        out: Length of an embedding.
        norm: Batch norm before the ReLU.
    """

    def __init__(self, in_channels: int, hidden: int, out: int, *, norm: bool = False) -> None:
        super().__init__()
        hidden = hidden or in_channels
        self.fc1 = nn.Linear(in_channels, hidden)
        self.norm1: nn.Module = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.fc2 = nn.Linear(hidden, out)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, C) -> (B, D)."""
        projected: Tensor = self.fc2(F.relu(self.norm1(self.fc1(vectors))))
        return projected


class ConvHead(nn.Module):
    """:class:`MLPHead` without batch norm, for every cell of a map on its own."""

    def __init__(self, in_channels: int, hidden: int, out: int) -> None:
        super().__init__()
        hidden = hidden or in_channels
        self.conv1 = nn.Conv2d(in_channels, hidden, 1)
        self.conv2 = nn.Conv2d(hidden, out, 1)

    def forward(self, feature_map: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, D, h, w)."""
        projected: Tensor = self.conv2(F.relu(self.conv1(feature_map)))
        return projected


def build_expander(in_channels: int, width: int) -> nn.Sequential:
    """Three linear layers with batch norm and ReLU between them, for (R, C) rows."""
    return nn.Sequential(
        nn.Linear(in_channels, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width, bias=False),
    )
