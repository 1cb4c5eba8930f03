"""The DensePose branch of a detector, and the detector that carries it."""

from __future__ import annotations

from dataclasses import dataclass

from clove_ssl.config.detection import BoxHeadConfig, DetectorConfig
from clove_ssl.config.limits import check_below_one, check_least


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
        section = "task.surface_head"
        check_least(
            1,
            section,
            decoder_width=self.decoder_width,
            width=self.width,
            pooled_side=self.pooled_side,
            surface_images=self.surface_images,
        )
        check_least(
            0,
            section,
            convs=self.convs,
            person_weight=self.person_weight,
            part_weight=self.part_weight,
            surface_weight=self.surface_weight,
        )
        check_below_one(section, overlap_above=self.overlap_above)


def densepose_detector() -> DetectorConfig:
    """Faster R-CNN with a pyramid, two fully connected layers, the older RoIAlign, and norms in
    backbone and pyramid."""
    return DetectorConfig(
        masks=False,
        head_norm="none",
        box=BoxHeadConfig(convs=0, fcs=2, pooling="legacy"),
    )
