"""The DensePose branch of a detector, and the detector that carries it."""

from __future__ import annotations

from dataclasses import dataclass

from clove_ssl.config.detection import BoxHeadConfig, DetectorConfig
from clove_ssl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class DensePoseHeadConfig:
    """The branch that predicts part, U and V of every pixel of a person."""

    decoder_width: int = 256
    """Channels of the map into which the pyramid is merged."""
    convs: int = 8
    """3 x 3 convolutions on a pooled region."""
    width: int = 512
    """Channels of these convolutions."""
    pooled_side: int = 28
    """Cells of the side of a pooled region; its maps have four times as many pixels."""
    overlap_above: float = 0.7
    """Regions learn from a person whose box they overlap by more than this."""
    person_weight: float = 5.0
    """Weight of the cross entropy between person and background."""
    part_weight: float = 1.0
    """Weight of the cross entropy of parts at labelled points."""
    surface_weight: float = 0.01
    """Weight of the summed smooth L1 distances of U and of V."""
    surface_images: int = 2
    """Images that these sums run over, whatever a process holds: Detectron2 sums over the images
    of one GPU, which were 2 in the published runs (16 on 8 GPUs)."""

    def __post_init__(self) -> None:
        sizes = (self.decoder_width, self.width, self.pooled_side, self.surface_images)
        if min(sizes) < 1 or self.convs < 0:
            raise UserError(
                f"task.surface_head has decoder_width={self.decoder_width}, width={self.width}, "
                f"pooled_side={self.pooled_side}, surface_images={self.surface_images} and "
                f"convs={self.convs}; expected all above 0 (only convs may be 0). Leave them out "
                "for the published 256, 512, 28, 2 and 8."
            )
        if not 0 <= self.overlap_above < 1:
            raise UserError(
                f"task.surface_head.overlap_above={self.overlap_above} is no overlap of boxes. "
                "Give a number from 0 to below 1; the published one is 0.7."
            )


def densepose_detector() -> DetectorConfig:
    """Faster R-CNN with a pyramid, two fully connected layers, the older RoIAlign, and norms in
    backbone and pyramid."""
    return DetectorConfig(
        masks=False,
        head_norm="none",
        box=BoxHeadConfig(convs=0, fcs=2, pooling="legacy"),
    )
