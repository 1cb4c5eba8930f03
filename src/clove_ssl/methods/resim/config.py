"""Every choice of ReSim (Xiao et al., 2021), with the released code's as defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from clove_ssl.config.bases import Kind
from clove_ssl.config.ranges import ImageSide, Range, Ranged, Weight, Width
from clove_ssl.config.views import ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.config import QueuedConfig
from clove_ssl.methods.metrics import of_parts
from clove_ssl.runs.metric_table import Metric

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method

SMALLEST_VIEW = 48  # three cells of c4, which is what a negative is averaged over


@dataclass(frozen=True, kw_only=True)
class WindowConfig(Ranged):
    """Windows that slide over a view and are compared on one level of the pyramid."""

    window: ImageSide = 48
    """Side of a window in pixels of a view."""
    stride: ImageSide = 32
    """Pixels from one window to the next."""
    weight: Weight = 1.0
    """Weight of this level's loss; the loss on whole images has weight 1."""
    negative_images: Annotated[int, Range(0, 2**20)] = 0
    """Number of consecutive images whose cells are negatives of each other's windows; must divide a
    process's micro-batch (which counts as one group if it is smaller). 0: all images of all
    processes."""


@dataclass(frozen=True, kw_only=True)
class ReSimConfig(QueuedConfig):
    """Region similarity representation learning (Xiao et al., 2021)."""

    name: ClassVar[str] = "resim"
    paper: ClassVar[str] = "Xiao et al., 2021"
    kinds: ClassVar[tuple[Kind, ...]] = ("global", "local")
    status: ClassVar[str] = "equal to the released code"

    c4: WindowConfig = field(default_factory=WindowConfig)
    c3: WindowConfig = field(
        default_factory=lambda: WindowConfig(window=32, stride=24, negative_images=32)
    )
    pyramid_channels: Width = 256
    """Channels of the feature pyramid, on which windows are compared."""
    shared_flip: bool = True
    """Flip the second view like the first; otherwise each has its own flip."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.views.global_size
        smallest = max(SMALLEST_VIEW, self.c4.window + 1, self.c3.window + 1)
        if size < smallest:
            raise UserError(
                f"method.views.global_size is {size}, too small for windows of {self.c4.window} "
                f"and {self.c3.window} pixels and maps of three cells. Give "
                f"--method.views.global-size {smallest} or more."
            )

    def view_specs(self) -> tuple[ViewSpec, ...]:
        first, second = super().view_specs()
        return (first, replace(second, flips_like=0)) if self.shared_flip else (first, second)

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.resim.method import ReSim

        return ReSim(self, backbone)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        yield from super().metrics(run)
        windows = {level: f"windows of stage {level}" for level in ("c4", "c3")}
        parts = {"global": "whole images", **windows}
        yield from of_parts("loss", parts, self.judge_loss(run))
        yield from of_parts("cos_positive", windows)
        yield from of_parts("cos_negative", windows)
        for level in windows:
            yield Metric(
                f"windows_kept_{level}",
                f"Windows kept, {level}",
                "matching",
                "Share of windows of one view that lie wholly inside the other.",
                is_share=True,
            )

    def summary(self) -> dict[str, str]:
        levels = {"c4": self.c4, "c3": self.c3}
        windows = [f"{each.window} px every {each.stride} on {n}" for n, each in levels.items()]
        return {**super().summary(), "windows": ", ".join(windows)}
