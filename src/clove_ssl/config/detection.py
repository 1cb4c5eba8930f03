"""How a detector is built, trained on regions, and read out.

The defaults are those of the published COCO protocol with a feature pyramid; ``c4_detector``,
``fpn_detector`` and ``keypoint_detector`` give the three detectors of the protocols. Numbers of
classes and keypoints belong to the data and are not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from clove_ssl.config.ranges import (
    Candidates,
    Layers,
    Positives,
    PositiveShare,
    Range,
    Ranged,
    Share,
    Weight,
    Width,
)
from clove_ssl.errors import UserError

STAGE_COUNT = 5
"""What can be frozen, in this order: stem, c2, c3, c4, c5."""


@dataclass(frozen=True, kw_only=True)
class ProposalConfig(Ranged):
    """The region proposal network: anchors, and how many regions it proposes."""

    anchor_sizes: Positives = (32.0, 64.0, 128.0, 256.0, 512.0)
    """Sides of square anchors in pixels: one per level of a pyramid, or all on the c4 map."""
    anchor_ratios: Positives = (0.5, 1.0, 2.0)
    """Height over width of the anchors of a size."""
    train_before_nms: Candidates = 2000
    """Best anchors of each level that enter non-maximum suppression in training."""
    train_after_nms: Candidates = 1000
    """Regions kept per image in training, over all levels."""
    test_before_nms: Candidates = 1000
    """Best anchors of each level that enter non-maximum suppression in tests."""
    test_after_nms: Candidates = 1000
    """Regions kept per image in tests, over all levels."""
    nms_overlap: Share = 0.7
    """Of two regions that overlap by more than this, the one with the lower score is dropped."""
    anchors_per_image: Candidates = 256
    """Anchors sampled for the loss, at most half of them on objects; the loss is divided by this
    number."""


@dataclass(frozen=True, kw_only=True)
class BoxHeadConfig(Ranged):
    """The head that classifies regions and refines their boxes."""

    convs: Layers = 4
    """3 x 3 convolutions (pyramids only; c4 detectors use the last stage of the backbone)."""
    conv_width: Width = 256
    fcs: Layers = 1
    """Fully connected layers after the convolutions (pyramids only)."""
    fc_width: Width = 1024
    regions_per_image: Candidates = 512
    """Regions sampled for the losses."""
    foreground_share: PositiveShare = 0.25
    """Largest share of these regions that show objects."""
    loss_beta: Weight = 0.0
    """Where the box loss changes from quadratic to linear; 0 is plain L1."""
    pooling: Literal["aligned", "legacy"] = "aligned"
    """RoIAlign with half-pixel shift and adaptive sampling, or the older rule of DensePose."""


@dataclass(frozen=True, kw_only=True)
class MaskHeadConfig(Ranged):
    """The head that predicts the mask of a region."""

    convs: Layers = 4
    """3 x 3 convolutions before the upsampling."""
    width: Width = 256


@dataclass(frozen=True, kw_only=True)
class KeypointHeadConfig(Ranged):
    """The head that predicts keypoints in a region."""

    convs: Layers = 8
    width: Width = 512


@dataclass(frozen=True, kw_only=True)
class ReadOutConfig(Ranged):
    """What counts as a detection."""

    score_above: Share = 0.05
    """Detections with lower scores are dropped (1e-4 for LVIS)."""
    nms_overlap: Share = 0.5
    """Of two detections of a class that overlap by more than this, the one with the lower score is
    dropped."""
    detections: Candidates = 100
    """Largest number of detections per image (300 for LVIS)."""


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(Ranged):
    """A detector around a backbone."""

    kind: Literal["c4", "fpn"] = "fpn"
    """``c4``: one map of stride 16, and the last stage of the backbone as box head; ``fpn``: a
    pyramid of maps with strides 4 to 64."""
    masks: bool = True
    """Add a mask head."""
    keypoints: bool = False
    """Add a keypoint head (pyramids only)."""
    backbone_norm: Literal["batch", "frozen"] = "batch"
    """Batch norms of the backbone: trained, or frozen affine maps."""
    neck_norm: Literal["batch", "none"] = "batch"
    """Norm in the pyramid, or after the last stage of a c4 detector."""
    head_norm: Literal["batch", "none"] = "batch"
    """Norm in the convolutions of the box and the mask head of a pyramid."""
    frozen_stages: Annotated[int, Range(0, STAGE_COUNT)] = 0
    """Stages that are not trained: 1 is the stem, 2 the stem and c2, and so on; 0 trains all."""
    pyramid_width: Width = 256
    """Channels of the pyramid's maps."""
    proposals: ProposalConfig = field(default_factory=ProposalConfig)
    box: BoxHeadConfig = field(default_factory=BoxHeadConfig)
    mask: MaskHeadConfig = field(default_factory=MaskHeadConfig)
    keypoint: KeypointHeadConfig = field(default_factory=KeypointHeadConfig)
    read_out: ReadOutConfig = field(default_factory=ReadOutConfig)

    def __post_init__(self) -> None:
        if self.kind == "c4" and self.keypoints:
            raise UserError(
                "A c4 detector has no keypoint head. Give kind fpn, or leave keypoints out."
            )
        if self.kind == "fpn" and len(self.proposals.anchor_sizes) != STAGE_COUNT:
            raise UserError(
                f"proposals.anchor_sizes has {len(self.proposals.anchor_sizes)} values, but a "
                f"pyramid has {STAGE_COUNT} levels with one size each. Give 32 64 128 256 512."
            )

    @property
    def size_multiple(self) -> int:
        """Batches are padded to a multiple of this many pixels."""
        return 32 if self.kind == "fpn" else 1


def c4_detector(*, masks: bool) -> DetectorConfig:
    """Faster or Mask R-CNN on the c4 map: the VOC protocol, and COCO C4 with masks."""
    return DetectorConfig(
        kind="c4",
        masks=masks,
        proposals=ProposalConfig(
            train_before_nms=12000, train_after_nms=2000, test_before_nms=6000
        ),
        mask=MaskHeadConfig(convs=0),
    )


def fpn_detector() -> DetectorConfig:
    """Mask R-CNN with a pyramid, four convolutions in the box head and norms everywhere."""
    return DetectorConfig()


def frozen_detector(read_out: ReadOutConfig | None = None) -> DetectorConfig:
    """Mask R-CNN with a pyramid as Detectron2's files have it: LVIS and Cityscapes.

    Norms of the backbone are fixed, there are no others; stem and c2 are not trained; the box head
    is two fully connected layers.
    """
    return DetectorConfig(
        backbone_norm="frozen",
        neck_norm="none",
        head_norm="none",
        frozen_stages=2,
        box=BoxHeadConfig(convs=0, fcs=2),
        read_out=read_out or ReadOutConfig(),
    )


def keypoint_detector() -> DetectorConfig:
    """Keypoint R-CNN with a pyramid, norms in backbone and pyramid only."""
    return DetectorConfig(
        masks=False,
        keypoints=True,
        head_norm="none",
        proposals=ProposalConfig(train_after_nms=1500),
        box=BoxHeadConfig(convs=0, fcs=2, loss_beta=0.5),
    )
