"""The smallest thing that can stand in for a backbone."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn


class TinyBackbone(nn.Module):
    """Stands in for a backbone: stride 4, 6 channels."""

    out_channels = 6
    stage = "c5"
    strides: ClassVar[dict[str, int]] = {"c5": 4}

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 4, stride=4)
        self.norm = nn.BatchNorm2d(6)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(images)))
