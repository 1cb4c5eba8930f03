"""Every choice of SlotCon (Wen et al., 2022), with those of the released scripts as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import Branch, Kind
from clove_ssl.config.views import OverlapSpec, ViewsConfig, ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.config import (
    TeacherConfig,
    TeacherStudentConfig,
    check_two_views,
    wide_crops,
)
from clove_ssl.methods.slotcon.metrics import slotcon_metrics

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class SlotHeadConfig:
    """Three layers with batch norm and GELU: the projector, and the predictor of slots."""

    hidden: int = 4096
    """Channels between the layers."""
    out: int = 256
    """Channels of a cell's or a slot's embedding."""


@dataclass(frozen=True, kw_only=True)
class SlotLossConfig:
    """How cells are grouped and slots compared."""

    student_temperature: float = 0.1
    """Divides the student's scores in the loss on groups."""
    teacher_temperature: float = 0.07
    """Divides the teacher's scores, and those from which the slots of both are averaged."""
    slot_temperature: float = 0.2
    """Divides the cosines between slots."""
    group_weight: float = 0.5
    """Weight of the loss on groups; the loss on slots has the rest up to 1."""
    center_momentum: float = 0.9
    """How much a step keeps of the mean score that is taken off the teacher's scores."""
    min_overlap: float = 0.01
    """Pairs of views that share less of the second view's area have no loss on groups; the
    second crop is drawn again to avoid them."""

    def __post_init__(self) -> None:
        temperatures = (self.student_temperature, self.teacher_temperature, self.slot_temperature)
        if min(temperatures) <= 0:
            raise UserError(
                f"method.loss has the temperatures {temperatures}; all must be above 0. Leave "
                "them out for 0.1, 0.07 and 0.2."
            )
        if not 0 <= self.group_weight <= 1 or not 0 <= self.min_overlap < 1:
            raise UserError(
                f"method.loss.group_weight={self.group_weight} and min_overlap={self.min_overlap} "
                "are shares between 0 and 1. Leave them out for 0.5 and 0.01."
            )


@dataclass(frozen=True, kw_only=True)
class SlotConConfig(TeacherStudentConfig):
    """Semantic grouping with contrastive slots (Wen et al., 2022)."""

    name: ClassVar[str] = "slotcon"
    paper: ClassVar[str] = "Wen et al., 2022"
    kinds: ClassVar[tuple[Kind, ...]] = ("local", "dense")
    status: ClassVar[str] = "equal to the released code"

    views: ViewsConfig = field(default_factory=lambda: wide_crops("bicubic"))
    redraws: int = 10
    """Most further draws of a second crop that shares less than ``loss.min_overlap``."""
    prototypes: int = 2048
    """Groups that cells are assigned to (2048 for ImageNet, 256 for COCO)."""
    head: SlotHeadConfig = field(default_factory=SlotHeadConfig)
    loss: SlotLossConfig = field(default_factory=SlotLossConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    export: Branch = "teacher"
    """The branch whose backbone is exported; the authors transfer the teacher."""

    def __post_init__(self) -> None:
        check_two_views(self.views, "SlotCon")
        if self.prototypes < 2:
            raise UserError(
                f"method.prototypes is {self.prototypes}, so all cells are in one group. "
                "Give --method.prototypes 256 or more."
            )
        if self.redraws < 0:
            raise UserError(
                f"method.redraws is {self.redraws}; expected 0 for none, or more. Leave it out "
                "for 10."
            )

    def view_specs(self) -> tuple[ViewSpec, ...]:
        first, second = self.views.specs()
        if not self.redraws:
            return first, second
        enough = OverlapSpec(view=0, share=self.loss.min_overlap, redraws=self.redraws)
        return first, replace(second, overlap=enough)

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.slotcon.method import SlotCon

        return SlotCon(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return (*slotcon_metrics(), *super().metrics(run))

    def summary(self) -> dict[str, str]:
        return {
            "views": f"2x{self.views.global_size}",
            "prototypes": f"{self.prototypes} of {self.head.out} channels",
            "loss": f"{self.loss.group_weight:g} groups + {1 - self.loss.group_weight:g} slots",
        }
