"""Every choice of SlotCon (Wen et al., 2022), with those of the released scripts as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from clove_ssl.config.bases import Branch, Kind
from clove_ssl.config.ranges import PartialShare, Positive, Range, Ranged, Share, Width
from clove_ssl.config.views import OverlapSpec, ViewsConfig, ViewSpec
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

SlotRoom = Literal["common", "all"]
"""How many rows the loss on slots has."""


@dataclass(frozen=True, kw_only=True)
class SlotHeadConfig(Ranged):
    """Three layers with batch norm and GELU: the projector, and the predictor of slots."""

    hidden: Width = 4096
    """Channels between the layers."""
    out: Width = 256
    """Channels of a cell's or a slot's embedding."""


@dataclass(frozen=True, kw_only=True)
class SlotLossConfig(Ranged):
    """How cells are grouped and slots compared."""

    student_temperature: Positive = 0.1
    """Divides the student's scores in the loss on groups."""
    teacher_temperature: Positive = 0.07
    """Divides the teacher's scores, and those from which the slots of both are averaged."""
    slot_temperature: Positive = 0.2
    """Divides the cosines between slots."""
    group_weight: Share = 0.5
    """Weight of the loss on groups; the loss on slots has the rest up to 1."""
    center_momentum: Share = 0.9
    """How much a step keeps of the mean score that is taken off the teacher's scores."""
    min_overlap: PartialShare = 0.01
    """Pairs of views that share less of the second view's area have no loss on groups; the
    second crop is drawn again to avoid them."""


@dataclass(frozen=True, kw_only=True)
class SlotConConfig(TeacherStudentConfig):
    """Semantic grouping with contrastive slots (Wen et al., 2022)."""

    name: ClassVar[str] = "slotcon"
    paper: ClassVar[str] = "Wen et al., 2022"
    kinds: ClassVar[tuple[Kind, ...]] = ("local", "dense")
    status: ClassVar[str] = "equal to the released code"

    views: ViewsConfig = field(default_factory=lambda: wide_crops("bicubic"))
    redraws: Annotated[int, Range(0, 1000)] = 10
    """Largest number of further draws of a second crop that shares less than
    ``loss.min_overlap``."""
    prototypes: Annotated[int, Range(2, 2**20)] = 2048
    """Groups that cells are assigned to (2048 for ImageNet, 256 for COCO)."""
    head: SlotHeadConfig = field(default_factory=SlotHeadConfig)
    loss: SlotLossConfig = field(default_factory=SlotLossConfig)
    slot_room: SlotRoom = "common"
    """Rows of the loss on slots: those of the ``common`` slots of a step, or of ``all`` possible
    slots. With ``all``, steps can be captured as CUDA graphs, but memory and matrix products grow
    with the square of the batch."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    export: Branch = "teacher"
    """The branch whose backbone is exported; the authors transfer the teacher."""

    def __post_init__(self) -> None:
        check_two_views(self.views, "SlotCon")

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
            "views": self.views.shown(),
            "prototypes": f"{self.prototypes} of {self.head.out} channels",
            "loss": f"{self.loss.group_weight:g} groups + {1 - self.loss.group_weight:g} slots",
        }
