"""Detection, instance segmentation and keypoints: the protocols of MoCo, PixPro and CLoVE."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.detection import DetectorConfig, c4_detector, fpn_detector, keypoint_detector
from clove_ssl.config.finetuning import FinetuneConfig, SolverConfig
from clove_ssl.config.ranges import ImageSide, ImageSides

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task

VOC_SIDES = tuple(range(480, 801, 32))
COCO_SIDES = tuple(range(640, 801, 32))


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(TaskConfig):
    """Objects of images: their boxes, and masks or keypoints where the detector has a head."""

    layout: ClassVar[Literal["voc", "coco"]] = "coco"
    annotation_kind: ClassVar[Literal["instances", "person_keypoints"]] = "instances"

    detector: DetectorConfig = field(default_factory=fpn_detector)
    train_sides: ImageSides = COCO_SIDES
    """Lengths of the shorter side; one of them is drawn for every training image."""
    test_side: ImageSide = 800
    """Length of the shorter side in tests."""
    longest: ImageSide = 1333
    """Limit of the longer side; if it is exceeded, the image is scaled down further."""

    def build(self) -> Task:
        from clove_ssl.tasks.detection.task import DetectionTask

        return DetectionTask(self)


@dataclass(frozen=True, kw_only=True)
class VOCDetectionConfig(DetectionConfig):
    """Boxes of VOC07+12 with Faster R-CNN on the c4 map; AP of the VOC rules."""

    name: ClassVar[str] = "voc-c4"
    layout: ClassVar[Literal["voc", "coco"]] = "voc"

    detector: DetectorConfig = field(default_factory=lambda: c4_detector(masks=False))
    train_sides: ImageSides = VOC_SIDES

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """24k steps on trainval of 2007 and 2012, tested on test of 2007."""
        return FinetuneConfig(
            out=out,
            backbone=backbone,
            task=cls(),
            solver=SolverConfig(iterations=24_000, steps=(18_000, 22_000), warmup_iterations=100),
        )


@dataclass(frozen=True, kw_only=True)
class COCOPyramidConfig(DetectionConfig):
    """Boxes and masks of COCO with Mask R-CNN and a feature pyramid, 1x; COCO's AP."""

    name: ClassVar[str] = "coco-fpn"

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """The 1x schedule: 90k steps of 16 images."""
        return FinetuneConfig(out=out, backbone=backbone, task=cls())


@dataclass(frozen=True, kw_only=True)
class COCOC4Config(COCOPyramidConfig):
    """Boxes and masks of COCO with Mask R-CNN on the c4 map, 1x; COCO's AP."""

    name: ClassVar[str] = "coco-c4"

    detector: DetectorConfig = field(default_factory=lambda: c4_detector(masks=True))


@dataclass(frozen=True, kw_only=True)
class COCOKeypointsConfig(COCOPyramidConfig):
    """Keypoints of COCO's persons with Keypoint R-CNN and a feature pyramid, 1x; OKS AP."""

    name: ClassVar[str] = "coco-keypoints"
    annotation_kind: ClassVar[Literal["instances", "person_keypoints"]] = "person_keypoints"

    detector: DetectorConfig = field(default_factory=keypoint_detector)
