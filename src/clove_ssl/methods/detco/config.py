"""Every choice of DetCo (Xie et al., 2021), with the published ones as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import Areas, Grid, ImageSide, Ranged, Weight, WidthFromZero
from clove_ssl.config.views import PatchSpec, ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.config import HeadConfig, QueuedConfig
from clove_ssl.methods.metrics import of_parts

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class JigsawConfig(Ranged):
    """A crop is divided into cells, and a patch is cut out of every cell."""

    grid: Grid = 3
    """Cells along each side of the crop."""
    frame: ImageSide = 255
    """Side of the crop in pixels; the side of a cell is this divided by ``grid``."""
    patch: ImageSide = 64
    """Side of a patch in pixels."""
    scale: Areas = (0.6, 1.0)
    """Smallest and largest share of the image area the crop covers."""

    @property
    def patches(self) -> int:
        """Patches of one crop."""
        return self.grid**2

    def __post_init__(self) -> None:
        if self.patch > self.frame // self.grid:
            raise UserError(
                f"method.jigsaw cuts {self.frame} pixels into {self.grid} cells a side, which have "
                f"no room for patches of {self.patch}. Leave them out for 255, 3 and 64."
            )


@dataclass(frozen=True, kw_only=True)
class DetCoConfig(QueuedConfig):
    """Contrast of images and jigsaw patches at four depths (Xie et al., 2021)."""

    name: ClassVar[str] = "detco"
    paper: ClassVar[str] = "Xie et al., 2021"
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "local")
    queues: ClassVar[int] = 8
    status: ClassVar[str] = "equal to third-party code"

    head: HeadConfig = field(default_factory=lambda: HeadConfig(hidden=0))
    """Heads of whole views; ``hidden`` 0 makes each as wide as its input."""
    local_hidden: WidthFromZero = 0
    """Width of the heads of joined patches; 0 makes each as wide as its input."""
    jigsaw: JigsawConfig = field(default_factory=JigsawConfig)
    level_weights: tuple[Weight, Weight, Weight, Weight] = (0.1, 0.4, 0.7, 1.0)
    """Weights of the losses on stages c2, c3, c4 and c5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(self.level_weights):
            raise UserError(
                f"method.level_weights is {self.level_weights}; expected one above 0 at "
                "least. Leave it out for 0.1 0.4 0.7 1."
            )

    def view_specs(self) -> tuple[ViewSpec, ...]:
        """Both whole views, then the patches of the first, then those of the second."""
        whole = self.views.specs()
        patches: list[ViewSpec] = []
        for spec in whole:
            patches += [self._patch(spec, len(whole) + len(patches))] * self.jigsaw.patches
        return (*whole, *patches)

    def _patch(self, whole: ViewSpec, first: int) -> ViewSpec:
        cut = PatchSpec(first=first, grid=self.jigsaw.grid, frame=self.jigsaw.frame)
        size, scale = self.jigsaw.patch, self.jigsaw.scale
        return replace(whole, role="local", size=size, scale=scale, patch=cut)

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.detco.method import DetCo

        return DetCo(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        yield from super().metrics(run)
        parts = {
            "global": "whole images",
            "local": "patches",
            "local_to_global": "patches with whole images",
        }
        yield from of_parts("loss", parts, self.judge_loss(run))
        for base in ("cos_positive", "cos_negative", "accuracy"):
            yield from of_parts(base, {"patches": "patches"})

    def summary(self) -> dict[str, str]:
        common = super().summary()
        jigsaw = f"2x{self.jigsaw.patches} patches of {self.jigsaw.patch}"
        weights = ", ".join(f"{weight:g}" for weight in self.level_weights)
        return {
            **common,
            "views": f"{common['views']} + {jigsaw}",
            "loss": f"{common['loss']}, levels weigh {weights}",
        }
