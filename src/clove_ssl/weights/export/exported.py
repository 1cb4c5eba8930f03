"""What is exported, and how a copy elsewhere is compared with it.

Dimensions: B images, H x W pixels, D channels, h x w cells of a feature map.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clove_ssl.backbones.build import CAFFE_SUFFIX, TIMM_PREFIX, Backbone
from clove_ssl.errors import UserError

if TYPE_CHECKING:
    from clove_ssl.methods.teacher_student import BackboneEncoder

TOLERANCE = 1e-5
SIZES = ((1, 96, 64), (2, 64, 128))  # batch, height, width of the images that are compared

Network = Callable[[Tensor], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Exported:
    """A backbone on its way out; everything in it is in eval mode."""

    backbone: Backbone
    metadata: Mapping[str, str]  # method, config hash, branch, licence
    stage: str = "all"  # of the maps that a graph gives
    encoder: BackboneEncoder | None = None  # with the heads of pre-training, where asked for

    @property
    def network(self) -> str:
        """The name in its library."""
        return self.backbone.name.removeprefix(TIMM_PREFIX)

    @property
    def is_timm(self) -> bool:
        return self.backbone.name.startswith(TIMM_PREFIX)

    @property
    def is_resnet(self) -> bool:
        """Whether it is one of torchvision's ResNets, which other libraries have too."""
        return not self.is_timm and "resne" in self.network and CAFFE_SUFFIX not in self.network


@dataclass(frozen=True)
class ResNetShape:
    """What other libraries ask for to build the same ResNet."""

    depth: int
    groups: int
    width: int  # channels of a group in the first stage

    @classmethod
    def of(cls, network: str) -> ResNetShape:
        """The shape behind one of torchvision's names.

        >>> ResNetShape.of("resnext101_32x8d")
        ResNetShape(depth=101, groups=32, width=8)
        """
        found = re.fullmatch(r"(wide_)?resnex?t(\d+)(?:_(\d+)x(\d+)d|_2)?", network)
        if found is None:
            raise ValueError(f"{network} is not one of torchvision's ResNets")
        wide, depth, groups, width = found.groups()
        return cls(int(depth), int(groups or 1), int(width or (128 if wide else 64)))


def largest_difference(mine: Network, theirs: Network) -> float:
    """How far two networks differ at most, as a share of the largest value of each map."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch, height, width in SIZES:
        images = torch.randn(batch, 3, height, width, generator=generator)
        with torch.no_grad():
            expected, found = mine(images), theirs(images)
        if [*expected] != [*found]:
            raise ValueError(f"outputs {[*found]} where {[*expected]} were expected")
        for name, feature_map in expected.items():
            scale = 1 + float(feature_map.abs().max())
            worst = max(worst, float((found[name] - feature_map).abs().max()) / scale)
    return worst


def refuse(exported: Exported, target: str, remedy: str) -> UserError:
    """The error for a network that a library does not have."""
    return UserError(
        f"{exported.backbone.name} cannot be exported to {target}, which has no such network. "
        f"{remedy}"
    )
