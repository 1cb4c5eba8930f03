"""DensePose R-CNN on DensePose-COCO: the s1x protocol of the DensePose project."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clove_ssl.config.detection import BoxHeadConfig, DetectorConfig
from clove_ssl.config.finetuning import FinetuneConfig, SolverConfig
from clove_ssl.config.ranges import BatchSize, Layers, PartialShare, Range, Ranged, Weight, Width
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.config import DetectionConfig

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class DensePoseHeadConfig(Ranged):
    """The branch that predicts part, U and V of every pixel of a person."""

    decoder_width: Width = 256
    """Channels of the map into which the pyramid is merged."""
    convs: Layers = 8
    """3 x 3 convolutions on a pooled region."""
    width: Width = 512
    """Channels of these convolutions."""
    pooled_side: Annotated[int, Range(1, 1024)] = 28
    """Side of a pooled region in cells; its output maps have four times as many pixels per side."""
    overlap_above: PartialShare = 0.7
    """A region is trained with the labels of a person whose box it overlaps by more than this."""
    person_weight: Weight = 5.0
    """Weight of the cross entropy between person and background."""
    part_weight: Weight = 1.0
    """Weight of the cross entropy of parts at labelled points."""
    surface_weight: Weight = 0.01
    """Weight of the summed smooth L1 distances of U and of V."""
    surface_images: BatchSize = 2
    """Number of images that these sums run over, whatever a process holds: Detectron2 sums over the
    images of one GPU, which were 2 in the published runs (16 on 8 GPUs)."""


def densepose_detector() -> DetectorConfig:
    """Faster R-CNN with a pyramid, two fully connected layers, the older RoIAlign, and norms in
    backbone and pyramid."""
    return DetectorConfig(
        masks=False,
        head_norm="none",
        box=BoxHeadConfig(convs=0, fcs=2, pooling="legacy"),
    )


@dataclass(frozen=True, kw_only=True)
class COCODensePoseConfig(DetectionConfig):
    """Surface coordinates of COCO's persons with DensePose R-CNN and a pyramid, s1x; GPSm AP."""

    name: ClassVar[str] = "coco-densepose"

    detector: DetectorConfig = field(default_factory=densepose_detector)
    surface_head: DensePoseHeadConfig = field(default_factory=DensePoseHeadConfig)
    surface: Path | None = None
    """Folder with the surface files of the DensePose project; built-in scenes need none."""
    scores: tuple[Literal["gpsm", "gps", "segm"], ...] = ("gpsm", "gps", "segm")
    """How persons are scored, besides their boxes; ``segm`` alone needs no surface files."""
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
        """130k steps of 16 images at a learning rate of 0.01."""
        return FinetuneConfig(
            out=out,
            backbone=backbone,
            task=cls(),
            solver=SolverConfig(
                lr=0.01, iterations=130_000, steps=(100_000, 120_000), warmup_factor=0.1
            ),
        )

    def build(self) -> Task:
        from clove_ssl.tasks.densepose.task import DensePoseTask

        return DensePoseTask(self)
