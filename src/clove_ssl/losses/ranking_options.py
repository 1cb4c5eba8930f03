"""The choices of CLoVE's ranking loss, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from clove_ssl.errors import UserError, unknown_name

Form = Literal["release", "paper"]
Aggregate = Literal["default", "cosines", "vectors"]
NegativeQueries = Literal["default", "all", "matched"]
UnmatchedImages = Literal["keep", "skip"]
FewNegatives = Literal["clamp", "drop"]
PairReduction = Literal["sum", "mean"]


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """What :func:`clove_ssl.losses.clove_loss` can be asked for besides its tensors."""

    positive_weight: float = 2.0
    """Lambda: how much more a match counts than a negative."""
    margin: float = 100.0
    """Mu. At 100 the hinge never closes, so the gradient does not depend on it."""
    top_k: int = 10
    """Most similar unmatched cells that are looked at for each query."""
    form: Form = "release"
    """``release``: one hinge per image; ``paper``: Eq. 2, one hinge per pair."""
    drop: int = 1
    """How many of the very most similar ones are skipped, as possible false negatives."""
    aggregate: Aggregate = "default"
    """Average the negatives' ``cosines`` (default of the release form) or ``vectors`` (paper)."""
    negative_queries: NegativeQueries = "default"
    """Queries with a negative term: ``all`` (default of the release form) or only the
    ``matched`` ones (paper). In the paper form ``all`` adds one hinge without a positive for
    each query that has no match."""
    unmatched_images: UnmatchedImages = "keep"
    """``keep`` images without a match in the mean over images, or ``skip`` them."""
    few_negatives: FewNegatives = "clamp"
    """When a query has fewer than ``top_k`` negatives, ``clamp`` uses those it has (none: no
    negative term); ``drop`` gives its whole image loss 0, as the released code does."""
    pair_reduction: PairReduction = "sum"
    """Over the pairs of an image the paper form takes the ``sum`` (literally Eq. 2) or the
    ``mean``, which keeps learning rates comparable between the forms."""

    def __post_init__(self) -> None:
        for field, kind in _CHOICES.items():
            if getattr(self, field) not in get_args(kind):
                raise unknown_name(field, str(getattr(self, field)), get_args(kind))
        if not 0 <= self.drop < self.top_k:
            raise UserError(
                f"drop={self.drop} of top_k={self.top_k} leaves no negative. "
                f"Give a drop of at least 0 and below top_k, such as drop=1 with top_k=10."
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


_CHOICES = {
    "form": Form,
    "aggregate": Aggregate,
    "negative_queries": NegativeQueries,
    "unmatched_images": UnmatchedImages,
    "few_negatives": FewNegatives,
    "pair_reduction": PairReduction,
}
