"""Every choice of CLoVE Plus: CLoVE's local loss at several stages, and one on whole images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clove_ssl.config.bases import Branch, Kind
from clove_ssl.config.ranges import (
    PartialShare,
    Positive,
    Ranged,
    Steps,
    Weight,
    Width,
)
from clove_ssl.errors import UserError
from clove_ssl.methods.clove.config import CLoVEConfig, LossConfig
from clove_ssl.methods.clove_plus.metrics import clove_plus_metrics
from clove_ssl.methods.config import Chance, TeacherConfig, VarianceWeights

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric

Stage = Literal["c2", "c3", "c4", "c5"]


@dataclass(frozen=True, kw_only=True)
class WholeConfig(VarianceWeights):
    """The loss on whole images: the mean of the student's last map, passed through an expander."""

    kind: Literal["vicreg", "infonce"] = "vicreg"
    """``vicreg``: VICReg's three terms; ``infonce``: find the same image in the batch."""
    beta: Weight = 3.0
    """How much larger the gradient of this loss is than that of the loss on cells, at the first map
    with a local loss."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How ``beta`` changes to ``final_beta`` over the run, if it does."""
    final_beta: Weight = 0.0
    """Value of ``beta`` at the end of a ``linear`` or ``cosine`` schedule."""
    width: Width = 4096
    """Channels of the three layers of the expander."""
    small_views: bool = True
    """Compare large views with small ones as well, not only with each other."""
    flips: Literal["any", "alike"] = "any"
    """``alike``: compare two views of an image only if both are mirrored or neither is, so that the
    last map can distinguish left from right."""
    chance: Chance = "kept"
    """``subtracted``: subtract from the squared covariances what independent channels show by
    chance in a batch, which is more for smaller batches."""
    temperature: Positive = 0.2
    """Divides the cosines of ``infonce``."""


@dataclass(frozen=True, kw_only=True)
class BalanceConfig(Ranged):
    """The factor of the loss on whole images, besides ``whole.beta``."""

    kind: Literal["gradient", "fixed"] = "gradient"
    """``gradient``: the norm of the gradient of the loss on cells, divided by that of the loss on
    whole images, both at the student's first map with a local loss; ``fixed``: ``ratio``."""
    ratio: Positive = 0.03
    """The factor if ``kind`` is ``fixed``; for ``gradient``, the factor until the first
    measurement, at the second step."""
    every: Steps = 20
    """Steps between measurements."""
    keep: PartialShare = 0.7
    """Share of the old factor that is kept after a measurement."""


@dataclass(frozen=True, kw_only=True)
class CLoVEPlusConfig(CLoVEConfig):
    """CLoVE at several stages, with a loss that tells whole images apart."""

    name: ClassVar[str] = "clove-plus"
    paper: ClassVar[str] = ""
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "dense")
    status: ClassVar[str] = "our own"

    targets: Literal["student", "teacher"] = "student"
    """What cells are compared with: the ``student``'s own embeddings of the other view, without a
    gradient through them, or those of a ``teacher``. The options ``teacher`` and ``export`` apply
    only to the latter."""
    stages: tuple[Stage, ...] = ("c4", "c5")
    """Stages with a local loss; each has its own projector and attention."""
    whole: WholeConfig = field(default_factory=WholeConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    queue_stages: tuple[Stage, ...] = ()
    """Stages whose negatives come from a queue of cells of other images, whatever
    ``loss.negatives`` says."""
    padding: Literal["zeros", "reflect"] = "zeros"
    """How convolutions pad the image border while the backbone is trained; ``reflect`` needs
    --no-deterministic on a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.has_teacher and (self.teacher != TeacherConfig() or self.export != "student"):
            raise UserError(
                "method.targets is student, so there is no teacher, but method.teacher or "
                "method.export asks for one. Give --method.targets teacher, or leave them out."
            )
        if not self.stages or len(set(self.stages)) < len(self.stages):
            raise UserError(
                f"method.stages is {' '.join(self.stages) or 'empty'}; expected at least one, none "
                "of them twice. Leave it out for c4 and c5."
            )
        if not set(self.queue_stages) <= set(self.stages):
            raise UserError(
                f"method.queue_stages is {' '.join(self.queue_stages)}, but only "
                f"{' '.join(self.stages)} have a local loss. Add the others to --method.stages."
            )

        if self.queue_stages and self.loss.kind == "l2":
            raise UserError(
                f"method.queue_stages is {' '.join(self.queue_stages)}, but method.loss.kind is "
                "l2, which has no negatives. Leave out --method.queue-stages, or give "
                "--method.loss.kind ranking."
            )

    @classmethod
    def in_todays_words(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Files that speak of a teacher and not of targets are older than the choice."""
        older = "teacher" in values and "targets" not in values
        return {**values, "targets": "teacher"} if older else values

    @property
    def has_teacher(self) -> bool:
        return self.targets == "teacher"

    @property
    def exported_branch(self) -> Branch | None:
        return super().exported_branch if self.has_teacher else None

    def loss_at(self, stage: str) -> LossConfig:
        """The local loss of a stage."""
        return replace(self.loss, negatives="inter") if stage in self.queue_stages else self.loss

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.clove_plus.method import CLoVEPlus, TaughtCLoVEPlus

        return (TaughtCLoVEPlus if self.has_teacher else CLoVEPlus)(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return clove_plus_metrics(self, run)

    def summary(self) -> dict[str, str]:
        whole = self.whole
        factor = "measured" if self.balance.kind == "gradient" else f"{self.balance.ratio:g}"
        beta = f"{whole.beta:g}" + (
            "" if whole.schedule == "constant" else f" to {whole.final_beta:g} ({whole.schedule})"
        )
        return {
            **super().summary(),
            "stages": ", ".join(self.stages),
            "targets": "of the teacher" if self.has_teacher else "the student's own",
            "whole images": f"{whole.kind}, beta {beta}, balance {factor}",
        }
