"""DensePose R-CNN on DensePose-COCO: the s1x protocol of the DensePose project."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.densepose import DensePoseHeadConfig, densepose_detector
from clove_ssl.config.detection import DetectorConfig
from clove_ssl.config.finetuning import FinetuneConfig, SolverConfig
from clove_ssl.config.tasks.detection import DetectionConfig
from clove_ssl.errors import UserError

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class COCODensePoseConfig(DetectionConfig):
    """Surface coordinates of COCO's persons with DensePose R-CNN and a pyramid, s1x; GPSm AP."""

    name: ClassVar[str] = "coco-densepose"

    detector: DetectorConfig = field(default_factory=densepose_detector)
    surface_head: DensePoseHeadConfig = field(default_factory=DensePoseHeadConfig)
    surface: Path | None = None
    """Folder with the surface files of the DensePose project; built-in scenes need none."""
    scores: tuple[Literal["gpsm", "gps", "segm"], ...] = ("gpsm", "gps", "segm")
    """How persons are scored besides their boxes; ``segm`` alone needs no surface."""
    mirror: bool = True
    """Mirror half of the training images, as published; needs UV_symmetry_transforms.mat."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scores or len(set(self.scores)) < len(self.scores):
            raise UserError(
                f"task.scores={self.scores}: expected some of gpsm, gps and segm, each once. Leave "
                "it out for all of them."
            )

    @property
    def scores_surface(self) -> bool:
        """Whether a score needs ways along the surface."""
        return self.scores != ("segm",)

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """130k iterations of 16 images at a learning rate of 0.01."""
        return FinetuneConfig(
            out=out,
            backbone=backbone,
            task=cls(),
            solver=SolverConfig(
                lr=0.01, iterations=130_000, steps=(100_000, 120_000), warmup_factor=0.1
            ),
        )

    def build(self) -> Task:
        from clove_ssl.tasks.densepose import DensePoseTask

        return DensePoseTask(self)
