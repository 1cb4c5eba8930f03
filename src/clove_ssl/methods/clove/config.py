"""Every choice of CLoVE (Silva et al., 2023), with the released code's as defaults.

Where the paper and the released code differ, the docstring of the field says
so; the defaults follow the release, except for the attention, which is the
paper's. ``recipes.clove_release_r50_200ep`` is the release in every point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args, get_type_hints

from clove_ssl.config.bases import Branch, Kind
from clove_ssl.config.ranges import Candidates, Positive, QueueSize, Range, Ranged, Weight
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.methods.clove.metrics import clove_metrics
from clove_ssl.methods.config import (
    MatchingConfig,
    ProjectorConfig,
    TeacherConfig,
    TeacherStudentConfig,
)

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Ranged):
    """Self-attention over the cells of one view: the predictor."""

    kind: Literal["normalized", "plain"] = "normalized"
    """``normalized``: unit queries and keys (the paper); ``plain``: scaled dot products with
    biases (the released code)."""
    heads: Annotated[int, Range(1, 1024)] = 8
    """Parallel heads; must divide the embedding's channels."""
    temperature: Positive = 0.2
    """Divides the cosines of ``normalized`` attention; the paper gives no value."""
    learn_temperature: bool = False
    """Train the temperature of ``normalized`` attention, starting from ``temperature``."""


Form = Literal["release", "paper"]


@dataclass(frozen=True, kw_only=True)
class RankingOptions(Ranged):
    """What :func:`clove_ssl.losses.clove_loss` can be asked for besides its tensors."""

    form: Form = "release"
    """``release``: one hinge per image, with a factor 2; ``paper``: Eq. 2, one hinge per pair."""
    positive_weight: Weight = 2.0
    """Lambda: how much more a match counts than a negative."""
    margin: Annotated[float, Range(-(10**9), 10**9)] = 100.0
    """Mu. At 100 the hinge is never zero, so the gradient does not depend on the margin."""
    top_k: Candidates = 10
    """Number of most similar unmatched cells to consider for each query."""
    drop: Annotated[int, Range(0, 10**6)] = 1
    """How many of the most similar ones are skipped, as possible false negatives."""
    aggregate: Literal["default", "cosines", "vectors"] = "default"
    """Average the negatives' cosines or their vectors; ``default`` is the form's own choice
    (release: cosines, paper: vectors)."""
    negative_queries: Literal["default", "all", "matched"] = "default"
    """Cells with a negative term; ``default`` is the form's own (release: all, paper: matched).
    In the paper form ``all`` adds one hinge without a positive for each cell without a match."""
    unmatched_images: Literal["keep", "skip"] = "keep"
    """``keep``: an image without a match is still pushed from its negatives (release form);
    ``skip`` leaves it out of the mean."""
    few_negatives: Literal["clamp", "drop"] = "clamp"
    """When a query has fewer than ``top_k`` negatives, ``clamp`` uses those it has (none: no
    negative term); ``drop`` gives its whole image loss 0, as the released code does."""
    pair_reduction: Literal["sum", "mean"] = "sum"
    """Over the pairs of an image the paper form takes the ``sum`` (literally Eq. 2) or the
    ``mean``, which keeps learning rates comparable between the forms."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(RankingOptions).items():
            if get_args(kind) and getattr(self, name) not in get_args(kind):
                raise unknown_name(name, str(getattr(self, name)), get_args(kind))
        if not 0 <= self.drop < self.top_k:
            raise UserError(
                f"drop {self.drop} of top_k {self.top_k} leaves no negative. Give "
                f"--method.loss.drop 0 to {max(0, self.top_k - 1)}, or a larger "
                "--method.loss.top-k."
            )

    @property
    def averages_vectors(self) -> bool:
        """Whether negatives are averaged as vectors, before the cosine."""
        return self.aggregate == "vectors" or (self.aggregate, self.form) == ("default", "paper")

    @property
    def spares_unmatched(self) -> bool:
        """Whether queries without a match have no negative term."""
        choice = (self.negative_queries, self.form)
        return self.negative_queries == "matched" or choice == ("default", "paper")


@dataclass(frozen=True, kw_only=True)
class LossConfig(RankingOptions):
    """How matching cells attract and other cells repel each other."""

    kind: Literal["ranking", "infonce", "l2"] = "ranking"
    """``ranking``: margin ranking with hard negatives; ``infonce``: find a match among all cells
    that do not match; ``l2``: attract the matches only."""
    negatives: Literal["intra", "inter", "inter-avg"] = "intra"
    """Where negatives come from: the other view of the same image, or a queue of cells
    (``inter``) or of averaged maps (``inter-avg``) of other images."""
    queue_size: QueueSize = 16384
    """Entries of the queue of ``inter`` and ``inter-avg`` negatives."""
    temperature: Positive = 0.2
    """Divides the cosines of ``infonce``."""
    local_weight: Weight = 1.0
    """Weight of a term with a small view relative to one between large views."""

    # Not for a run to choose, so no fields here. With the mean over pairs both forms work with the
    # same learning rate.
    few_negatives: ClassVar[Literal["clamp", "drop"]] = "clamp"  # type: ignore[misc]
    pair_reduction: ClassVar[Literal["sum", "mean"]] = "mean"  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class CLoVEConfig(TeacherStudentConfig):
    """Contextualized local visual embeddings (Silva et al., 2023)."""

    name: ClassVar[str] = "clove"
    paper: ClassVar[str] = "Silva et al., 2023"
    kinds: ClassVar[tuple[Kind, ...]] = ("dense",)
    status: ClassVar[str] = "equal to the released code"
    has_attention: ClassVar[bool] = True

    views: ViewsConfig = field(default_factory=ViewsConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    joint_views: bool = True
    """Views of one size share a forward pass and so their batch statistics; otherwise each
    view is normalised on its own."""
    export: Branch = "student"
    """The branch whose backbone is exported."""

    def __post_init__(self) -> None:
        if self.views.global_count < 2:
            raise UserError(
                f"method.views.global_count is {self.views.global_count}, but a view needs another "
                "one to be compared with. Give --method.views.global-count 2 or more."
            )
        if self.projector.out % self.attention.heads:
            raise UserError(
                f"method.projector.out={self.projector.out} is not a multiple of "
                f"method.attention.heads={self.attention.heads}. Change one of them, for example "
                f"--method.projector.out {32 * self.attention.heads}."
            )

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.clove.method import CLoVE

        return CLoVE(self, backbone)

    def loss_terms(self) -> int:
        """Pairs of a student view and a teacher view that are compared."""
        large = self.views.global_count
        return large * (large - 1) + self.views.local_count * large

    @property
    def matching_rule(self) -> MatchingConfig:
        return self.matching

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return clove_metrics(self, run)

    def summary(self) -> dict[str, str]:
        tau = f", temperature {self.attention.temperature}"
        form = f" ({self.loss.form} form)" if self.loss.kind == "ranking" else ""
        return {
            "views": self.views.shown(),
            "loss": f"{self.loss.kind}{form}, {self.loss_terms()} terms",
            "attention": f"{self.attention.kind}, {self.attention.heads} heads"
            + (tau if self.attention.kind == "normalized" else ""),
        }
