"""What the configs of several methods share: heads, projectors, matching, teachers, queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clove_ssl.config.bases import Branch, MethodConfig
from clove_ssl.config.ranges import (
    Positive,
    QueueSize,
    Range,
    Ranged,
    Share,
    Weight,
    Width,
    WidthFromZero,
)
from clove_ssl.config.views import Interpolation, ViewsConfig, ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.metrics import (
    ACCURACY,
    NEGATIVE_COSINE,
    TEACHER_DISTANCE,
    judge_queued_fall,
    positive_cosine,
)
from clove_ssl.runs.common_metrics import LOSS
from clove_ssl.runs.metric_table import Judge, Metric

if TYPE_CHECKING:
    from clove_ssl.config.pretraining import PretrainConfig

Chance = Literal["kept", "subtracted"]
"""What becomes of the covariances that a batch shows by chance."""


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig(Ranged):
    """Two 1x1 convolutions with batch norm between and after them."""

    hidden: Width = 4096
    """Channels between the two convolutions."""
    out: Width = 256
    """Channels of a local embedding."""
    bias: bool = False
    """Give the convolutions a bias (PixPro does, CLoVE does not)."""
    last_norm: Literal["plain", "affine", "none"] = "plain"
    """Batch norm after the last convolution: without scale and shift, with them, or none."""


@dataclass(frozen=True, kw_only=True)
class VarianceWeights(Ranged):
    """How much each term of VICReg counts."""

    invariance: Weight = 25.0
    """Weight of the squared distance between matching embeddings (VICReg)."""
    variance: Weight = 25.0
    """Weight of the hinge that keeps the standard deviation of every channel at 1 (VICReg)."""
    covariance: Weight = 1.0
    """Weight of the squared covariances between channels (VICReg)."""


@dataclass(frozen=True, kw_only=True)
class MatchingConfig(Ranged):
    """Which cells of two views show the same place."""

    threshold: Positive = 0.7
    """T_pos: cells match when their centres are closer than this many cell diagonals."""
    unit: Literal["larger", "query"] = "larger"
    """The diagonal that counts: the larger of the two cells', or the student cell's."""
    coordinates: Literal["per-axis", "pixel"] = "per-axis"
    """``per-axis``: each axis scaled to 0..1 with inclusive corners (the released code);
    ``pixel``: true pixel distances. They disagree on 17 % of the pairs of a 4:3 photo."""


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(Ranged):
    """The moving average that provides the targets."""

    momentum: Share = 0.99
    """Momentum at the start of training."""
    final_momentum: Share = 1.0
    """Momentum at the end; in between it follows a cosine."""
    update: Literal["before-forward", "after-step"] = "before-forward"
    """``before-forward``: just before the teacher's last forward pass of a step, as released;
    ``after-step``: right after the optimizer."""
    mode: Literal["train", "eval"] = "train"
    """``train``: the teacher normalises with statistics of its own batch; ``eval``: with running
    statistics, which are then averaged from the student's as well."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Ranged):
    """Two layers on top of the backbone, or of another head."""

    hidden: WidthFromZero = 2048
    """Width between the two layers; 0 takes the width of the input."""
    out: Width = 128
    """Length of an embedding."""


class TeacherStudentConfig(MethodConfig):
    """A method with a teacher; its fields are the subclass's, in the order of that one."""

    teacher: TeacherConfig
    export: Branch

    @property
    def has_teacher(self) -> bool:
        return True

    @property
    def exported_branch(self) -> Branch | None:
        return self.export

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return (TEACHER_DISTANCE,)


@dataclass(frozen=True, kw_only=True)
class PooledViewsConfig(TeacherStudentConfig):
    """Two large views of an image, embedded by a student and by a teacher that follows it."""

    views: ViewsConfig = field(default_factory=lambda: ViewsConfig(local_count=0))
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    export: Branch = "student"
    """The branch whose backbone is exported."""

    def __post_init__(self) -> None:
        check_two_views(self.views, self.name)

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return (positive_cosine("images"), *super().metrics(run))

    def summary(self) -> dict[str, str]:
        first, last = self.teacher.momentum, self.teacher.final_momentum
        return {
            "views": self.views.shown(),
            "teacher": f"momentum {first}" + (f" to {last}" if first != last else ""),
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
    temperature: Positive = 0.2
    """Divides the cosines of the loss."""
    queue_size: QueueSize = 65536
    """Keys of earlier batches that serve as negatives."""
    shuffle_groups: Annotated[int, Range(0, 2**16)] = 8
    """Number of shuffled groups, over all processes, in which batch norm normalises keys; each
    process has at least one. 0 turns shuffling off, which suits ``--sync-norm`` on several
    processes."""

    def judge_loss(self, run: PretrainConfig) -> Judge:
        """A judge that knows how long the queue takes to fill."""
        return judge_queued_fall(self.queue_size / run.batch_size)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        loss = replace(LOSS, judge=self.judge_loss(run))
        return (loss, *super().metrics(run), NEGATIVE_COSINE, ACCURACY)

    def summary(self) -> dict[str, str]:
        shuffled = f"keys in {self.shuffle_groups} shuffled groups"
        return {
            **super().summary(),
            "loss": f"temperature {self.temperature}, {self.queue_size} negatives",
            "batch norm": shuffled if self.shuffle_groups else "no shuffling",
        }


def wide_crops(interpolation: Interpolation) -> ViewsConfig:
    """Two large views that cover 8 % to 100 % of the image, with BYOL's photometrics."""
    return ViewsConfig(local_count=0, global_scale=(0.08, 1.0), interpolation=interpolation)


def check_two_views(views: ViewsConfig, method: str) -> None:
    """Refuse views that a method on two large ones would have to ignore."""
    if (views.global_count, views.local_count) != (2, 0):
        raise UserError(
            f"{method} compares two large views, but method.views asks for {views.global_count} "
            f"large and {views.local_count} small ones. Give --method.views.global-count 2 "
            "--method.views.local-count 0."
        )
