"""Instance segmentation of LVIS: Detectron2's 1x protocol, over a thousand classes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.detection import DetectorConfig, ReadOutConfig, frozen_detector
from clove_ssl.config.finetuning import EvaluationConfig, FinetuneConfig, SolverConfig
from clove_ssl.config.ranges import Share
from clove_ssl.tasks.detection.config import DetectionConfig

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task


def lvis_detector() -> DetectorConfig:
    """Three hundred detections of an image, also those with tiny scores."""
    return frozen_detector(ReadOutConfig(score_above=1e-4, detections=300))


@dataclass(frozen=True, kw_only=True)
class LVISConfig(DetectionConfig):
    """Boxes and masks of LVIS v1 with Mask R-CNN and a pyramid, 1x; LVIS's AP."""

    name: ClassVar[str] = "lvis-fpn"
    versions: ClassVar[tuple[str, ...]] = ("v1", "v0.5")
    """Annotations that are looked for, the first ones first."""

    detector: DetectorConfig = field(default_factory=lvis_detector)
    repeat_threshold: Share = 0.001
    """Images with a class that occurs in a smaller share of the training images are repeated; 0
    uses every image once per epoch."""

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """180k steps of 16 images; no norms are trained, so none are measured anew."""
        return FinetuneConfig(
            out=out,
            backbone=backbone,
            task=cls(),
            solver=SolverConfig(iterations=180_000, steps=(120_000, 160_000)),
            evaluation=EvaluationConfig(precise_norm_batches=0),
        )

    def build(self) -> Task:
        from clove_ssl.tasks.lvis.task import LVISTask

        return LVISTask(self)


@dataclass(frozen=True, kw_only=True)
class LVISHalfConfig(LVISConfig):
    """Boxes and masks of LVIS v0.5 with Mask R-CNN and a pyramid, 1x; LVIS's AP."""

    name: ClassVar[str] = "lvis-v0.5-fpn"
    versions: ClassVar[tuple[str, ...]] = ("v0.5",)

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """Half the steps of v1, which has about twice the images."""
        published = super().protocol(out, backbone)
        return replace(published, solver=SolverConfig(iterations=90_000, steps=(60_000, 80_000)))
