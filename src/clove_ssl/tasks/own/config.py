"""Tasks for a user's own classes.

No protocol stands behind them: schedule, sides and batch are chosen for the data and the device
when a run begins, and stand in its ``config.yaml`` from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.detection import BoxHeadConfig, DetectorConfig, ProposalConfig
from clove_ssl.config.finetuning import EvaluationConfig, FinetuneConfig, SolverConfig
from clove_ssl.config.ranges import ImageSide
from clove_ssl.tasks.detection.config import DetectionConfig
from clove_ssl.tasks.semantic.config import VOCSemanticConfig

if TYPE_CHECKING:
    from clove_ssl.config.bases import TaskConfig
    from clove_ssl.tasks.base import Task

PATIENCE = 5
"""Evaluations without a better score that end a run."""


def own_detector(*, masks: bool = False, keypoints: bool = False) -> DetectorConfig:
    """A pyramid with a light box head: two fully connected layers, fewer regions."""
    return DetectorConfig(
        masks=masks,
        keypoints=keypoints,
        head_norm="none",
        proposals=ProposalConfig(train_before_nms=1000, train_after_nms=500, test_after_nms=500),
        box=BoxHeadConfig(convs=0, fcs=2, regions_per_image=256),
    )


@dataclass(frozen=True, kw_only=True)
class OwnDetectionConfig(DetectionConfig):
    """Objects of a user's own classes."""

    is_published: ClassVar[bool] = False

    detector: DetectorConfig = field(default_factory=own_detector)
    side: ImageSide | None = None
    """Length of the shorter side of images; by default it depends on the images and the device.
    ``train_sides``, ``test_side`` and ``longest`` follow from it unless they are given."""

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """A start; what the data and the device decide is filled in when a run begins."""
        return _start(cls(), out, backbone, lr=0.02)

    def build(self) -> Task:
        from clove_ssl.tasks.own.task import OwnDetectionTask

        return OwnDetectionTask(self)


@dataclass(frozen=True, kw_only=True)
class DetectConfig(OwnDetectionConfig):
    """Boxes of your own classes, from COCO, VOC, YOLO or LabelMe files; COCO's AP."""

    name: ClassVar[str] = "detect"


@dataclass(frozen=True, kw_only=True)
class InstancesConfig(OwnDetectionConfig):
    """Boxes and masks of your own classes, from COCO, YOLO or LabelMe files; COCO's AP."""

    name: ClassVar[str] = "instances"

    detector: DetectorConfig = field(default_factory=lambda: own_detector(masks=True))


@dataclass(frozen=True, kw_only=True)
class KeypointsConfig(OwnDetectionConfig):
    """Keypoints of your own classes, from COCO or YOLO files; OKS AP."""

    name: ClassVar[str] = "keypoints"

    detector: DetectorConfig = field(default_factory=lambda: own_detector(keypoints=True))


@dataclass(frozen=True, kw_only=True)
class SegmentConfig(VOCSemanticConfig):
    """A class for every pixel of your own images, from masks or outlines; mean IoU."""

    name: ClassVar[str] = "segment"
    is_published: ClassVar[bool] = False

    side: ImageSide | None = None
    """Length of the shorter side to which images are resized before they are cropped; by default it
    depends on the images and the device. ``crop`` and ``test_longest`` follow from it."""

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """A start; what the data and the device decide is filled in when a run begins."""
        return _start(cls(), out, backbone, lr=0.01)

    def build(self) -> Task:
        from clove_ssl.tasks.own.task import OwnSemanticTask

        return OwnSemanticTask(self)


def _start(task: TaskConfig, out: Path, backbone: str, *, lr: float) -> FinetuneConfig:
    return FinetuneConfig(
        out=out,
        backbone=backbone,
        task=task,
        # Decays at 70 and 90 % of a run, however long it is.
        solver=SolverConfig(lr=lr, iterations=1000, steps=(700, 900), warmup_iterations=100),
        evaluation=EvaluationConfig(best=True, patience=PATIENCE),
        precision="auto",
    )
