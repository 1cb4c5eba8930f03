"""From pixels to the maps of a detector, and from a map to the vector of a region.

There are two kinds. ``C4Features`` has one map of stride 16 and sends every region through the
last stage of the backbone; ``PyramidFeatures`` has five maps and a small head. Both hold the
backbone, so its weights are in one place, whichever part of it runs where.

Dimensions: B images, H x W pixels, R regions, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from clove_ssl.backbones.build import STAGES, Backbone
from clove_ssl.config.detection import DetectorConfig
from clove_ssl.errors import UserError
from clove_ssl.layers.fused_norm.activation import normalize
from clove_ssl.layers.ladder import put_on_ladder
from clove_ssl.layers.layouts import mean_of_cells
from clove_ssl.tasks.rcnn.layers import (
    WORTH_FUSING,
    Norm,
    NormedConv,
    is_worth_fusing,
    start_linear,
)
from clove_ssl.tasks.rcnn.regions.pooling import (
    ALIGNED,
    LEGACY,
    assign_levels,
    has_kernel,
    pool_pyramid,
    pool_regions,
)
from clove_ssl.tasks.rcnn.regions.roi_heads import BoxHead

BOX_SIDE = 7
HEAD_SIDE = 14
LEAST_PIXELS = WORTH_FUSING // 2
"""Values of images (B, 3, H, W) that are so large that most maps are, too: those of the first
stages have half to five times as many."""


class C4Features(nn.Module):
    """One map of stride 16; the last stage of the backbone turns regions into vectors.

    Args:
        config: The detector.
        backbone: A network whose last stage can run on its own.
    """

    shares_maps = True
    """The mask head sees the same maps of a region as the box head."""
    mask_side = HEAD_SIDE
    """Pixels of a mask; the last stage of the backbone halves, the mask head doubles."""

    def __init__(self, config: DetectorConfig, backbone: Backbone) -> None:
        super().__init__()
        _check_strides(backbone)
        if not backbone.parts["c5"]:
            raise UserError(
                f"A c4 detector runs the last stage of the backbone on regions, but that of "
                f"{backbone.name} does not come apart. Take an fpn detector, or a torchvision "
                "backbone such as resnet50."
            )
        self.backbone = Backbone(
            backbone.body, name=backbone.name, parts=backbone.parts, stage="c4"
        )
        put_on_ladder(backbone.body)  # the canvas is not rounded up, as it is for a pyramid
        channels = backbone.channels["c5"]
        self.norm = nn.BatchNorm2d(channels) if config.neck_norm == "batch" else None
        self.rule = ALIGNED if config.box.pooling == "aligned" else LEGACY
        self.strides = (backbone.strides["c4"],)
        self.level_channels = backbone.channels["c4"]
        self.map_channels = self.vector_length = channels
        self.least_to_fuse = LEAST_PIXELS

    def fuse_small(self) -> None:
        """Use kernels of ours for small images as well, because the host has time for them."""
        self.least_to_fuse = 0

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> the map of stride 16 (B, C, H / 16, W / 16)."""
        if is_worth_fusing(pixels, self.least_to_fuse):
            return [self.backbone.features(pixels)]
        return [self.backbone(pixels, "c4")["c4"]]

    def assign_levels(self, regions: Tensor) -> Tensor | None:
        """There is one level."""
        return None

    def pools_without_waiting(self, levels: Sequence[Tensor], regions: Tensor) -> bool:
        """Whether regions (R, 5) are pooled by one kernel, which a graph can replay."""
        return has_kernel(levels, regions)

    def region_maps(
        self, levels: Sequence[Tensor], regions: Tensor, own: Tensor | None = None
    ) -> Tensor:
        """Regions (R, 5) as the box head sees them: (R, C, 7, 7)."""
        maps = pool_regions(
            levels[0], regions, stride=self.strides[0], size=HEAD_SIDE, rule=self.rule
        )
        # On 14 x 14 cells of every region, which its stride of 2 makes 7 x 7.
        maps = self.backbone.run_stage("c5", maps)
        # An extra norm behind c5, as published for self-supervised weights, whose features have
        # other scales.
        return maps if self.norm is None else normalize(self.norm, maps)

    def region_vectors(self, maps: Tensor) -> Tensor:
        """(R, C, 7, 7) -> (R, vector_length)."""
        return mean_of_cells(maps)

    def head_maps(
        self, levels: Sequence[Tensor], regions: Tensor, own: Tensor | None = None
    ) -> Tensor:
        """Regions (R, 5) as the mask head sees them: (R, C, 7, 7)."""
        return self.region_maps(levels, regions)


class PyramidFeatures(nn.Module):
    """Five maps of strides 4 to 64; regions are pooled from the level of their size.

    Args:
        config: The detector.
        backbone: Any network with the stages c2 to c5.
    """

    shares_maps = False
    """The mask and the keypoint head pool regions of their own."""
    mask_side = 2 * HEAD_SIDE
    """Pixels of a mask, which the head doubles."""

    def __init__(self, config: DetectorConfig, backbone: Backbone) -> None:
        super().__init__()
        _check_strides(backbone)
        self.backbone = backbone
        if backbone.stage == STAGES[-1]:
            backbone.hand_out(STAGES)
        channels = {stage: backbone.channels[stage] for stage in STAGES}
        self.pyramid = FeaturePyramid(channels, width=config.pyramid_width, norm=config.neck_norm)
        self.box_head = BoxHead(
            config.box, config.pyramid_width, side=BOX_SIDE, norm=config.head_norm
        )
        self.rule = ALIGNED if config.box.pooling == "aligned" else LEGACY
        stage_strides = [backbone.strides[stage] for stage in STAGES]
        self.strides = (*stage_strides, 2 * stage_strides[-1])
        self.level_channels = self.map_channels = config.pyramid_width
        self.vector_length = self.box_head.out_features
        self.least_to_fuse = LEAST_PIXELS

    def fuse_small(self) -> None:
        """Use kernels of ours for small images as well, because the host has time for them."""
        self.least_to_fuse = 0
        for layer in self.pyramid.modules():
            if isinstance(layer, NormedConv):
                layer.least_to_fuse = 0

    def forward(self, pixels: Tensor) -> list[Tensor]:
        """(B, 3, H, W) -> the five maps of the pyramid, the finest first."""
        backbone = self.backbone
        hands_out = backbone.stage == STAGES[-1] and is_worth_fusing(pixels, self.least_to_fuse)
        maps = backbone.maps(pixels) if hands_out else backbone(pixels)
        levels: list[Tensor] = self.pyramid(maps)
        return levels

    def assign_levels(self, regions: Tensor) -> Tensor | None:
        """The levels that regions (R, 5) are pooled from: (R,)."""
        return assign_levels(regions[:, 1:], levels=len(self.strides) - 1)

    def pools_without_waiting(self, levels: Sequence[Tensor], regions: Tensor) -> bool:
        """Whether regions (R, 5) are pooled by one kernel, which a graph can replay."""
        return has_kernel(levels[:-1], regions)

    def region_maps(
        self, levels: Sequence[Tensor], regions: Tensor, own: Tensor | None = None
    ) -> Tensor:
        """Regions (R, 5), of their ``own`` levels (R,), for the box head: (R, C, 7, 7)."""
        return self._pool(levels, regions, own, BOX_SIDE)

    def region_vectors(self, maps: Tensor) -> Tensor:
        """(R, C, 7, 7) -> (R, vector_length)."""
        vectors: Tensor = self.box_head(maps)
        return vectors

    def head_maps(
        self, levels: Sequence[Tensor], regions: Tensor, own: Tensor | None = None
    ) -> Tensor:
        """The same for the mask and the keypoint head: (R, C, 14, 14)."""
        return self._pool(levels, regions, own, HEAD_SIDE)

    def _pool(
        self, levels: Sequence[Tensor], regions: Tensor, own: Tensor | None, size: int
    ) -> Tensor:
        # The coarsest map is for proposals only.
        strides = self.strides[:-1]
        return pool_pyramid(
            levels[:-1], regions, strides=strides, size=size, rule=self.rule, levels=own
        )


def _check_strides(backbone: Backbone) -> None:
    strides = [backbone.strides.get(stage) for stage in STAGES]
    if strides != [4, 8, 16, 32]:
        raise UserError(
            f"A detector needs maps of strides 4, 8, 16 and 32, but {backbone.name} gives "
            f"{', '.join(str(stride) for stride in strides)}. Build it with stage last and "
            "output_stride 32; the weights stay the same."
        )


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
                # Images are padded to a multiple of the coarsest stride, so that doubled maps fit
                # exactly.
                lateral = lateral + F.interpolate(running, scale_factor=2, mode="nearest")
            running = lateral
            levels.insert(0, self.outputs[stage](lateral))
        # Every second cell, nothing learned: large anchors need few places.
        return [*levels, F.max_pool2d(levels[-1], kernel_size=1, stride=2)]
