"""Every choice of supervised training on class labels, the baseline of all tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from clove_ssl.config.bases import Kind, MethodConfig
from clove_ssl.config.ranges import PartialShare, Range
from clove_ssl.config.views import ViewsConfig, ViewSpec
from clove_ssl.errors import UserError
from clove_ssl.methods.metrics import ACCURACY

if TYPE_CHECKING:
    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.runs.metric_table import Metric


def plain_crop() -> ViewsConfig:
    """One random crop of 8 % to 100 % of the image, mirrored half of the time, colours as is."""
    return ViewsConfig(
        global_count=1,
        global_scale=(0.08, 1.0),
        local_count=0,
        interpolation="bilinear",
        jitter_probability=0.0,
        grey_probability=0.0,
        global_blur=(0.0,),
        global_solarize=(0.0,),
    )


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig(MethodConfig):
    """Classification of labelled images, the baseline with labels."""

    name: ClassVar[str] = "supervised"
    kinds: ClassVar[tuple[Kind, ...]] = ("global",)
    status: ClassVar[str] = "baseline"
    needs_labels: ClassVar[bool] = True

    views: ViewsConfig = field(default_factory=plain_crop)
    classes: Annotated[int, Range(1, 2**20)] | None = None
    """Number of classes; by default that of the data, which the run then records."""
    label_smoothing: PartialShare = 0.0
    """Share of the target that is spread evenly over all classes; 0.1 is common."""

    def __post_init__(self) -> None:
        if (self.views.global_count, self.views.local_count) != (1, 0):
            raise UserError(
                f"supervised classifies one view, but method.views asks for "
                f"{self.views.global_count} large and {self.views.local_count} small ones. Give "
                "--method.views.global-count 1 --method.views.local-count 0."
            )

    def view_specs(self) -> tuple[ViewSpec, ...]:
        return self.views.specs()

    def build(self, backbone: Backbone) -> Method:
        from clove_ssl.methods.supervised.method import Supervised

        return Supervised(self, backbone)

    def for_classes(self, count: int) -> Self:
        if self.classes not in (None, count):
            raise UserError(
                f"method.classes is {self.classes}, but the data has {count} classes. Restore the "
                "data, or leave the option out to take what is there."
            )
        return replace(self, classes=count)

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        return (ACCURACY,)

    def summary(self) -> dict[str, str]:
        smoothing = f", label smoothing {self.label_smoothing:g}" if self.label_smoothing else ""
        return {
            "views": self.views.shown(),
            "loss": f"cross entropy over {self.classes} classes{smoothing}",
        }
