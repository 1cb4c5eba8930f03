"""A small network with the stages of a real backbone, for methods that use several of them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class TinyPyramid(nn.Module):
    """Stages c3, c4 and c5 with strides 8, 16 and 32 and few channels."""

    stage = "c5"
    out_channels = 6

    def __init__(self) -> None:
        super().__init__()
        self.channels = {"c3": 4, "c4": 5, "c5": 6}
        self.strides = {"c3": 8, "c4": 16, "c5": 32}
        self.stem = nn.Conv2d(3, 4, 8, stride=8)
        self.norm = nn.BatchNorm2d(4)
        self.middle = nn.Conv2d(4, 5, 2, stride=2)
        self.last = nn.Conv2d(5, 6, 2, stride=2)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        c3 = F.relu(self.norm(self.stem(images)))
        c4 = F.relu(self.middle(c3))
        return {"c3": c3, "c4": c4, "c5": F.relu(self.last(c4))}

    def features(self, images: Tensor) -> Tensor:
        return self(images)["c5"]
