"""What the configs of BYOL, MoCo and DenseCL share: two views, a teacher, an export."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from clove_ssl.config.methods.base import MethodConfig
from clove_ssl.config.methods.clove import TeacherConfig
from clove_ssl.config.methods.two_views import check_two_views
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Two layers on top of the backbone, or of another head."""

    hidden: int = 2048
    """Width between the two layers."""
    out: int = 128
    """Length of an embedding."""


@dataclass(frozen=True, kw_only=True)
class PooledViewsConfig(MethodConfig):
    """Two large views of an image, embedded by a student and by a teacher that follows it."""

    has_teacher: ClassVar[bool] = True

    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(local_count=0))
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    export: Literal["student", "teacher"] = "student"
    """The branch whose backbone is exported."""

    def __post_init__(self) -> None:
        check_two_views(self.views, self.name)

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def summary(self) -> dict[str, str]:
        first, last = self.teacher.momentum, self.teacher.final_momentum
        return {
            "views": f"2x{self.views.global_size}",
            "teacher": f"momentum {first}" + f" to {last}" * (first != last),
        }


def moco_views() -> ViewsConfig:
    """MoCo v2's two views, which are drawn alike."""
    return ViewsConfig(
        local_count=0,
        interpolation="bilinear",
        jitter_strength=(0.4, 0.4, 0.4, 0.1),
        global_blur=(0.5, 0.5),
        global_solarize=(0.0, 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class QueuedConfig(PooledViewsConfig):
    """Contrast with a queue of earlier keys: what MoCo and DenseCL share."""

    queues: ClassVar[int] = 1

    views: ViewsConfig = field(default_factory=moco_views)
    teacher: TeacherConfig = field(
        default_factory=lambda: TeacherConfig(momentum=0.999, final_momentum=0.999)
    )
    head: HeadConfig = field(default_factory=HeadConfig)
    temperature: float = 0.2
    """Divides the cosines of the loss."""
    queue_size: int = 65536
    """Keys of earlier batches that serve as negatives."""
    shuffle_groups: int = 8
    """Groups of mixed membership in which keys are normalised, over all processes; each process
    has at least one. 0 turns shuffling off, as ``--sync-norm`` on several processes should."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0 or self.queue_size < 1 or self.shuffle_groups < 0:
            raise UserError(
                f"method.temperature={self.temperature}, queue_size={self.queue_size} and "
                f"shuffle_groups={self.shuffle_groups}: the first two must be above 0, the last "
                "0 or more. Leave them out for 0.2, 65536 and 8."
            )

    def summary(self) -> dict[str, str]:
        shuffled = f"keys in {self.shuffle_groups} shuffled groups"
        return {
            **super().summary(),
            "loss": f"temperature {self.temperature}, {self.queue_size} negatives",
            "batch norm": shuffled if self.shuffle_groups else "no shuffling",
        }
