"""Semantic segmentation of VOC with a fully convolutional network, the quick task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.finetuning import FinetuneConfig, SolverConfig
from clove_ssl.config.ranges import ImageSide, Range, Several, Width

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task

Zoom = Annotated[float, Range(0, 64, above=True)]


@dataclass(frozen=True, kw_only=True)
class VOCSemanticConfig(TaskConfig):
    """A class for every pixel of VOC's images; mean intersection over union."""

    name: ClassVar[str] = "voc-semantic"

    crop: ImageSide = 513
    """Side of the square that is cut out of a training image."""
    scales: Annotated[tuple[Zoom, Zoom], Several(rising=True)] = (0.5, 2.0)
    """A training image is resized by a random factor between these two."""
    test_longest: ImageSide = 1333
    """Test images keep their size, unless their longer side exceeds this."""
    head_width: Width = 256
    """Channels of the two convolutions of the head."""
    head_dilation: Annotated[int, Range(1, 1024)] = 6
    """Dilation of those convolutions."""

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """FCN of stride 16 as in MoCo's appendix: batch 16, lr 0.003, decays at 70 and 90 %."""
        return FinetuneConfig(
            out=out,
            backbone=backbone,
            task=cls(),
            solver=SolverConfig(
                lr=0.003,
                iterations=33_000,
                steps=(23_100, 29_700),
                warmup_iterations=0,
            ),
            deterministic=True,
        )

    def build(self) -> Task:
        from clove_ssl.tasks.semantic.task import SemanticTask

        return SemanticTask(self)
