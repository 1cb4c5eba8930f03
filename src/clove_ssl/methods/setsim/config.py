"""Every choice of SetSim (Wang et al., 2022), with those of the released script as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import Cosine, Ranged, Share
from clove_ssl.methods.config import MatchingConfig
from clove_ssl.methods.densecl.config import DenseCLConfig
from clove_ssl.methods.metrics import matches_of_two_views

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class SetsConfig(Ranged):
    """Which cells of the other view form the positive set of a cell."""

    kind: Literal["both", "attention", "geometry"] = "both"
    """Cells with strong attention in both views (``attention``), cells that show the same place
    (``geometry``), or all of them."""
    attention: Share = 0.7
    """A cell has strong attention if its strength, scaled to 0 to 1 over its view, reaches this."""
    likeness: Cosine = 0.2
    """Least cosine of backbone features for cells with strong attention to form a set."""
    nearest: Literal["none", "matched", "all"] = "none"
    """Add the most similar cell to the sets that are not empty (``matched``, the released option),
    or to ``all`` sets."""


@dataclass(frozen=True, kw_only=True)
class SetSimConfig(DenseCLConfig):
    """Exploring set similarity for dense self-supervised learning (Wang et al., 2022)."""

    name: ClassVar[str] = "setsim"
    paper: ClassVar[str] = "Wang et al., 2022"
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "dense")
    status: ClassVar[str] = "equal to the released code"

    sets: SetsConfig = field(default_factory=SetsConfig)
    matching: MatchingConfig = field(default_factory=lambda: MatchingConfig(threshold=0.5))
    unmatched_images: Literal["keep", "skip"] = "keep"
    """``keep``: an image without a set counts as 0 in the mean over images, as released;
    ``skip`` leaves it out of the mean."""

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.setsim.method import SetSim

        return SetSim(self, backbone)

    @property
    def matching_rule(self) -> MatchingConfig:
        return self.matching

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return (*super().metrics(run), *matches_of_two_views())

    def summary(self) -> dict[str, str]:
        sources = {"both": "attention and geometry"}.get(self.sets.kind, self.sets.kind)
        return {**super().summary(), "sets": f"from {sources}"}
