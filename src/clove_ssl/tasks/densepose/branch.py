"""The DensePose branch of a detector: from the maps of a pyramid to part, U and V of every pixel.

A decoder merges the pyramid into one map of stride 4. Regions of it go through convolutions, and
four transposed convolutions predict whether a pixel shows a person (2 channels), which part of
the body (24, channel 0 is none), and U and V on each part.

Dimensions: B images, C channels, H x W cells, R regions, M x M pixels of a region's maps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.layers.ladder import by_rows
from clove_ssl.tasks.densepose.config import DensePoseHeadConfig
from clove_ssl.tasks.densepose.surfaces import PART_COUNT
from clove_ssl.tasks.rcnn.detectron2_names import detectron2_name
from clove_ssl.tasks.rcnn.layers import NormedConv, start_for_relu
from clove_ssl.tasks.rcnn.regions.pooling import LEGACY, pool_regions

FIRST_STRIDE = 4
"""Pixels of a cell of the merged map."""
_PERSON_CHANNELS = 2
_LEVELS = 4  # maps of the pyramid, the finest first


class SurfaceMaps(NamedTuple):
    """What is predicted for the pixels of regions."""

    person: Tensor  # (R, 2, M, M) logits of background and person
    part: Tensor  # (R, 25, M, M) logits of no part and of parts 1 to 24
    u: Tensor  # (R, 25, M, M)
    v: Tensor  # (R, 25, M, M)


class PyramidDecoder(nn.Module):
    """Brings the maps of a pyramid to the finest stride, adds them up and mixes the channels.

    A map of stride 4 * 2^k passes k convolutions, each followed by a doubling of its size; the
    finest one passes one convolution.

    Args:
        in_channels: Channels of the pyramid's maps.
        width: Channels of the merged map, and in between.
    """

    def __init__(self, in_channels: int, *, width: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            _scale(in_channels, width, doublings=level) for level in range(_LEVELS)
        )
        self.predictor = NormedConv(width, width, 1, norm="none", relu=False)
        start_for_relu(self.predictor)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Maps (B, C, H / 2^k, W / 2^k) -> (B, width, H, W)."""
        finest, *coarser = [scale(level) for scale, level in zip(self.scales, levels, strict=True)]
        merged: Tensor = finest
        for each in coarser:
            merged = merged + each
        result: Tensor = self.predictor(merged)
        return result


class DensePoseHead(nn.Module):
    """Decoder, pooling, convolutions and the four predictors.

    Args:
        config: Numbers and widths of the layers.
        in_channels: Channels of the pyramid's maps.
    """

    def __init__(self, config: DensePoseHeadConfig, in_channels: int) -> None:
        super().__init__()
        self.config = config
        self.decoder = PyramidDecoder(in_channels, width=config.decoder_width)
        self.convs = nn.Sequential(
            *(
                NormedConv(
                    config.width if number else config.decoder_width,
                    config.width,
                    3,
                    norm="none",
                    relu=True,
                )
                for number in range(config.convs)
            )
        )
        channels = config.width if config.convs else config.decoder_width
        self.person = _doubling(channels, _PERSON_CHANNELS)
        self.part = _doubling(channels, PART_COUNT + 1)
        self.u = _doubling(channels, PART_COUNT + 1)
        self.v = _doubling(channels, PART_COUNT + 1)
        for layer in self.convs:
            assert isinstance(layer, NormedConv)
            start_for_relu(layer)

    def forward(self, levels: Sequence[Tensor], regions: Tensor) -> SurfaceMaps:
        """The pyramid's maps of strides 4 to 32 and regions (R, 5) -> maps of the regions."""
        return self.predict(self.convs(self.pool(self.decoder(levels), regions)))

    def pool(self, merged: Tensor, regions: Tensor) -> Tensor:
        """Regions (R, 5) of the merged map (B, C, H, W): (R, C, S, S)."""
        return pool_regions(
            merged, regions, stride=FIRST_STRIDE, size=self.config.pooled_side, rule=LEGACY
        )

    def predict(self, maps: Tensor) -> SurfaceMaps:
        """(R, width, S, S) -> (R, 2 or 25, 4S, 4S)."""
        return SurfaceMaps(*(_enlarged(by_rows(layer, maps)) for layer in self.predictors))

    @property
    def predictors(self) -> tuple[nn.ConvTranspose2d, ...]:
        """The last layers, in the order of :class:`SurfaceMaps`."""
        return self.person, self.part, self.u, self.v


def _scale(in_channels: int, width: int, *, doublings: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number in range(max(doublings, 1)):
        conv = NormedConv(width if number else in_channels, width, 3, norm="none", relu=True)
        start_for_relu(conv)
        layers.append(conv)
        if doublings:
            layers.append(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False))
    return nn.Sequential(*layers)


def _doubling(in_channels: int, out_channels: int) -> nn.ConvTranspose2d:
    layer = nn.ConvTranspose2d(in_channels, out_channels, 4, stride=2, padding=1)
    start_for_relu(layer)
    return layer


def _enlarged(maps: Tensor) -> Tensor:
    return F.interpolate(maps, scale_factor=2, mode="bilinear", align_corners=False)


_PREDICTORS = {"person": "ann_index", "part": "index_uv", "u": "u", "v": "v"}


def densepose_name(name: str) -> str:
    """Detectron2's name of an entry of a DensePose detector's state dict."""
    if match := re.fullmatch(r"surface_head\.decoder\.scales\.(\d)\.(.+)", name):
        return f"roi_heads.decoder.p{int(match[1]) + 2}.{match[2]}"
    if match := re.fullmatch(r"surface_head\.decoder\.predictor\.(.+)", name):
        return f"roi_heads.decoder.predictor.{match[1]}"
    if match := re.fullmatch(r"surface_head\.convs\.(\d+)\.(.+)", name):
        return f"roi_heads.densepose_head.body_conv_fcn{int(match[1]) + 1}.{match[2]}"
    if match := re.fullmatch(r"surface_head\.(person|part|u|v)\.(.+)", name):
        return f"roi_heads.densepose_predictor.{_PREDICTORS[match[1]]}_lowres.{match[2]}"
    return detectron2_name(name, "fpn")
