"""Semantic segmentation of VOC with a fully convolutional network, the quick task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import TaskConfig
from clove_ssl.config.finetuning import FinetuneConfig, SolverConfig
from clove_ssl.config.limits import check_least
from clove_ssl.errors import UserError

if TYPE_CHECKING:
    from clove_ssl.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class VOCSemanticConfig(TaskConfig):
    """A class for every pixel of VOC's images; mean intersection over union."""

    name: ClassVar[str] = "voc-semantic"

    crop: int = 513
    """Side of the square that is cut out of a training image."""
    scales: tuple[float, float] = (0.5, 2.0)
    """A training image is resized by a random factor between these two."""
    test_longest: int = 1333
    """Test images keep their size, unless their longer side exceeds this."""
    head_width: int = 256
    """Channels of the two convolutions of the head."""
    head_dilation: int = 6
    """Dilation of those convolutions."""

    def __post_init__(self) -> None:
        low, high = self.scales
        if self.crop < 1 or not 0 < low <= high < math.inf:
            raise UserError(
                f"task.crop={self.crop} and task.scales={low} {high}: expected a crop of at least "
                "one pixel and two factors above 0, the smaller one first. Try --task.crop 513 "
                "--task.scales 0.5 2.0."
            )
        check_least(
            1,
            "task",
            test_longest=self.test_longest,
            head_width=self.head_width,
            head_dilation=self.head_dilation,
        )

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
