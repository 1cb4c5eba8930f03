"""Every choice of InsCon (Yang et al., 2022), after the abstract: most of the defaults are ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import Grid, ImageSide, Positive, Ranged, Share
from clove_ssl.errors import UserError
from clove_ssl.methods.config import HeadConfig, MatchingConfig, QueuedConfig
from clove_ssl.methods.metrics import matches_of_two_views, of_parts

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


@dataclass(frozen=True, kw_only=True)
class MosaicConfig(Ranged):
    """How photos are laid out in a multi-instance image."""

    rows: Grid = 2
    """Number of photos from top to bottom."""
    columns: Grid = 2
    """Number of photos from left to right."""
    tile: ImageSide = 128
    """Side in pixels to which a view is downscaled; a multiple of the backbone's stride, so that
    every cell belongs to one photo."""
    places: Literal["same", "shifted"] = "shifted"
    """Where the teacher's photos are: in the student's positions, or shifted by one more position
    in every step."""

    @property
    def photos(self) -> int:
        """Photos in one image."""
        return self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class InsConConfig(QueuedConfig):
    """Instance consistency on multi-instance images (Yang et al., 2022), after the abstract."""

    name: ClassVar[str] = "inscon"
    paper: ClassVar[str] = "Yang et al., 2022"
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "dense")
    status: ClassVar[str] = "after the abstract"

    mosaic: MosaicConfig = field(default_factory=MosaicConfig)
    dense_head: HeadConfig = field(default_factory=HeadConfig)
    dense_weight: Share = 0.5
    """Share of the loss between cells; the rest is the loss between photos."""
    dense_temperature: Positive = 0.2
    """Divides the cosines of cells."""
    matching: MatchingConfig = field(default_factory=MatchingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        tile, side = self.mosaic.tile, self.views.global_size
        if tile > side:
            raise UserError(
                f"method.mosaic.tile={tile} would enlarge views of {side} pixels, but they are "
                f"to be downscaled. Give --method.mosaic.tile {side} or less, or larger "
                "--method.views.global-size."
            )

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.inscon.method import InsCon

        return InsCon(self, backbone)

    @property
    def matching_rule(self) -> MatchingConfig:
        return self.matching

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        yield from super().metrics(run)
        yield from of_parts("loss", {"global": "photos"}, self.judge_loss(run))
        for base in ("loss", "cos_positive", "cos_negative", "accuracy"):
            yield from of_parts(base, {"dense": "cells"})
        yield from matches_of_two_views()

    def summary(self) -> dict[str, str]:
        common, mosaic = super().summary(), self.mosaic
        layout = f"{mosaic.rows}x{mosaic.columns} photos of {mosaic.tile} pixels in one image"
        return {
            **common,
            "method": "after the abstract of the paper",
            "views": f"{common['views']}, {layout}",
            "loss": f"{common['loss']}, {self.dense_weight} dense",
        }
