"""A ResNet with the module names of Detectron2, for files that are to be loaded there.

Written from the names alone: ``stem.conv1`` and blocks ``res2`` to ``res5`` with
``conv1``, ``conv2``, ``conv3`` and ``shortcut``, each a convolution that owns its
``norm``. The norm is a batch norm, as with ``NORM: "BN"`` and ``"SyncBN"``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class NormedConv(nn.Conv2d):
    """A convolution that owns its norm."""

    def __init__(self, channels_in: int, channels: int, size: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.shortcut = NormedConv(channels_in, channels, 1, stride) if stride > 1 else None
        self.conv1 = NormedConv(channels_in, channels, 3, stride)
        self.conv2 = NormedConv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(F.relu(self.conv1(x)))
        return F.relu(out + (self.shortcut(x) if self.shortcut else x))


class BottleneckBlock(nn.Module):
    """1x1, 3x3, 1x1; the second one strides (``STRIDE_IN_1X1: False``)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        narrow = channels // 4
        differs = channels_in != channels
        self.shortcut = NormedConv(channels_in, channels, 1, stride) if differs else None
        self.conv1 = NormedConv(channels_in, narrow, 1)
        self.conv2 = NormedConv(narrow, narrow, 3, stride)
        self.conv3 = NormedConv(narrow, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))
        return F.relu(out + (self.shortcut(x) if self.shortcut else x))


class Detectron2ResNet(nn.Module):
    """Depth 18 or 50."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        block, counts, widths = {
            18: (BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512)),
            50: (BottleneckBlock, (3, 4, 6, 3), (256, 512, 1024, 2048)),
        }[depth]
        self.stem = nn.Module()
        self.stem.conv1 = NormedConv(3, 64, 7, 2)
        channels = 64
        for number, (count, width) in enumerate(zip(counts, widths, strict=True)):
            stage = nn.Sequential()
            for index in range(count):
                stride = 2 if number and not index else 1
                stage.append(block(channels, width, stride))
                channels = width
            setattr(self, f"res{number + 2}", stage)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = F.max_pool2d(F.relu(self.stem.conv1(x)), 3, 2, 1)
        maps = {}
        for number in (2, 3, 4, 5):
            x = getattr(self, f"res{number}")(x)
            maps[f"c{number}"] = x
        return maps
