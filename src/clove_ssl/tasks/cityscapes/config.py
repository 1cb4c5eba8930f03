"""Instance segmentation of Cityscapes: the protocol of Detectron2's configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.detection import DetectorConfig, frozen_detector
from clove_ssl.config.finetuning import EvaluationConfig, FinetuneConfig, SolverConfig
from clove_ssl.config.ranges import ImageSide, ImageSides
from clove_ssl.tasks.detection.config import DetectionConfig

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task

CITYSCAPES_SIDES = tuple(range(800, 1025, 32))


@dataclass(frozen=True, kw_only=True)
class CityscapesConfig(DetectionConfig):
    """Boxes and masks of Cityscapes' instances with Mask R-CNN and a pyramid; instance-level AP."""

    name: ClassVar[str] = "cityscapes-fpn"

    detector: DetectorConfig = field(default_factory=frozen_detector)
    train_sides: ImageSides = CITYSCAPES_SIDES
    test_side: ImageSide = 1024
    longest: ImageSide = 2048
    labels: Literal["polygons", "instances"] = "polygons"
    """Which label files are read: gtFine_polygons.json or gtFine_instanceIds.png."""

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """24k steps of 8 images; no norms are trained, so none are measured anew."""
        return FinetuneConfig(
            out=out,
            backbone=backbone,
            task=cls(),
            solver=SolverConfig(lr=0.01, batch_size=8, iterations=24_000, steps=(18_000,)),
            evaluation=EvaluationConfig(precise_norm_batches=0),
        )

    def build(self) -> Task:
        from clove_ssl.tasks.cityscapes.task import CityscapesTask

        return CityscapesTask(self)
