"""Every choice of CLoVE (Silva et al., 2023), with the released code's as defaults.

Where the paper and the released code differ, the docstring of the field says
so; the defaults follow the release, except for the attention, which is the
paper's. ``recipes.clove_release_r50_200ep`` is the release in every point.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.limits import check_least, check_positive
from clove_ssl.config.methods.base import Kind, MethodConfig
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.errors import UserError

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class ProjectorConfig:
    """Two 1x1 convolutions with batch norm between and after them."""

    hidden: int = 4096
    """Channels between the two convolutions."""
    out: int = 256
    """Channels of a local embedding."""
    bias: bool = False
    """Give the convolutions a bias (PixPro does, CLoVE does not)."""
    last_norm: Literal["plain", "affine", "none"] = "plain"
    """Batch norm after the last convolution: without scale and shift, with them, or none."""

    def __post_init__(self) -> None:
        check_least(1, "method.projector", hidden=self.hidden, out=self.out)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """Self-attention over the cells of one view: the predictor."""

    kind: Literal["normalized", "plain"] = "normalized"
    """``normalized``: unit queries and keys (the paper); ``plain``: scaled dot products with
    biases (the released code)."""
    heads: int = 8
    """Parallel heads; must divide the embedding's channels."""
    temperature: float = 0.2
    """Divides the cosines of ``normalized`` attention; the paper gives no value."""
    learn_temperature: bool = False
    """Train the temperature of ``normalized`` attention, starting from ``temperature``."""

    def __post_init__(self) -> None:
        check_least(1, "method.attention", heads=self.heads)
        check_positive("method.attention", temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class MatchingConfig:
    """Which cells of two views show the same place."""

    threshold: float = 0.7
    """T_pos: cells match when their centres are closer than this many cell diagonals."""
    unit: Literal["larger", "query"] = "larger"
    """The diagonal that counts: the larger of the two cells', or the student cell's."""
    coordinates: Literal["per-axis", "pixel"] = "per-axis"
    """``per-axis``: each axis scaled to 0..1 with inclusive corners (the released code);
    ``pixel``: true pixel distances. They disagree on 17 % of the pairs of a 4:3 photo."""

    def __post_init__(self) -> None:
        if self.threshold <= 0:
            raise UserError(
                f"method.matching.threshold is {self.threshold}, so no cell can have a positive. "
                "Give a number above 0; the paper tries 0.5 to 0.9."
            )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """How matched cells attract and the others repel."""

    kind: Literal["ranking", "infonce", "l2"] = "ranking"
    """``ranking``: margin ranking with hard negatives; ``infonce``: find a match among all cells
    that are none; ``l2``: attract the matches only."""
    form: Literal["release", "paper"] = "release"
    """``release``: one hinge per image, with a factor 2; ``paper``: Eq. 2, one hinge per pair."""
    positive_weight: float = 2.0
    """Lambda: how much more a match counts than a negative."""
    margin: float = 100.0
    """Mu. At 100 the hinge never closes, so the gradient does not depend on it."""
    top_k: int = 10
    """Most similar unmatched cells that are looked at for each query."""
    drop: int = 1
    """How many of the very most similar ones are skipped, as possible false negatives."""
    aggregate: Literal["default", "cosines", "vectors"] = "default"
    """Average the negatives' cosines or their vectors; ``default`` is the form's own choice
    (release: cosines, paper: vectors)."""
    negative_queries: Literal["default", "all", "matched"] = "default"
    """Cells with a negative term; ``default`` is the form's own (release: all, paper: matched)."""
    unmatched_images: Literal["keep", "skip"] = "keep"
    """``keep``: an image without a match still repels its negatives (release form); ``skip``
    leaves it out of the mean."""
    negatives: Literal["intra", "inter", "inter-avg"] = "intra"
    """Where negatives come from: the other view of the same image, or a queue of cells
    (``inter``) or of averaged maps (``inter-avg``) of other images."""
    queue_size: int = 16384
    """Entries of the queue of ``inter`` and ``inter-avg`` negatives."""
    temperature: float = 0.2
    """Divides the cosines of ``infonce``."""
    local_weight: float = 1.0
    """Weight of a term with a small view relative to one between large views."""

    def __post_init__(self) -> None:
        if not 0 <= self.drop < self.top_k:
            raise UserError(
                f"method.loss.drop is {self.drop} of top_k {self.top_k}, which leaves no negative. "
                f"Give --method.loss.drop 0 to {self.top_k - 1}."
            )
        check_positive("method.loss", temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """The moving average that provides the targets."""

    momentum: float = 0.99
    """Momentum at the start of training."""
    final_momentum: float = 1.0
    """Momentum at the end; in between it follows a cosine."""
    update: Literal["before-forward", "after-step"] = "before-forward"
    """``before-forward``: just before the teacher's last forward pass of a step, as released;
    ``after-step``: right after the optimizer."""
    mode: Literal["train", "eval"] = "train"
    """``train``: the teacher normalises with statistics of its own batch; ``eval``: with running
    statistics, which are then averaged from the student's as well."""


@dataclass(frozen=True, kw_only=True)
class CLoVEConfig(MethodConfig):
    """Contextualized local visual embeddings (Silva et al., 2023)."""

    name: ClassVar[str] = "clove"
    paper: ClassVar[str] = "Silva et al., 2023"
    kinds: ClassVar[tuple[Kind, ...]] = ("dense",)
    has_teacher: ClassVar[bool] = True
    status: ClassVar[str] = "equal to the released code"

    views: ViewsConfig = field(default_factory=ViewsConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    matching: MatchingConfig = field(default_factory=MatchingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    joint_views: bool = True
    """Views of one size share a forward pass and so their batch statistics; otherwise each
    view is normalised on its own."""
    export: Literal["student", "teacher"] = "student"
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
        from clove_ssl.methods.clove import CLoVE

        return CLoVE(self, backbone)

    def loss_terms(self) -> int:
        """Pairs of a student view and a teacher view that are compared."""
        large = self.views.global_count
        return large * (large - 1) + self.views.local_count * large

    def summary(self) -> dict[str, str]:
        tau = f", temperature {self.attention.temperature}"
        return {
            "views": f"{self.views.global_count}x{self.views.global_size}"
            + (
                f" + {self.views.local_count}x{self.views.local_size}"
                * bool(self.views.local_count)
            ),
            "loss": f"{self.loss.kind} ({self.loss.form} form), {self.loss_terms()} terms",
            "attention": f"{self.attention.kind}, {self.attention.heads} heads"
            + tau * (self.attention.kind == "normalized"),
        }
