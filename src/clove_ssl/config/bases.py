"""What the configs of all methods, and those of all tasks, have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from clove_ssl.config.ranges import Ranged
from clove_ssl.config.views import ViewSpec

if TYPE_CHECKING:
    from pathlib import Path

    from clove_ssl.backbones.build import Backbone
    from clove_ssl.config.finetuning import FinetuneConfig
    from clove_ssl.config.pretraining import PretrainConfig
    from clove_ssl.methods.base import Method
    from clove_ssl.methods.config import MatchingConfig
    from clove_ssl.runs.metric_table import Metric
    from clove_ssl.tasks.base import Task


Kind = Literal["global", "local", "dense"]
"""What is compared: whole images, parts of them (windows, patches, groups of cells), or cells."""
Branch = Literal["student", "teacher"]


@dataclass(frozen=True, kw_only=True)
class MethodConfig(Ranged):
    """A pre-training method; subclasses add the fields and say how to build it."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """Authors and year, as ``clove list methods`` shows them."""
    kinds: ClassVar[tuple[Kind, ...]] = ()
    """What its loss compares."""
    queues: ClassVar[int] = 0
    """Queues of earlier embeddings that it keeps by default."""
    status: ClassVar[str] = "plug-in"
    """What the method has been compared with."""
    needs_labels: ClassVar[bool] = False
    """Whether batches must say which class their images belong to."""
    trains: ClassVar[bool] = True
    """Whether there is anything to train; otherwise a run has no steps."""
    has_attention: ClassVar[bool] = False
    """Whether its network says what a cell takes from others (``Method.attention_maps``)."""

    @classmethod
    def in_todays_words(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of a config file, which may be older than some of the fields."""
        return values

    @property
    def has_teacher(self) -> bool:
        """Whether a moving average of the network provides targets."""
        return False

    @property
    def exported_branch(self) -> Branch | None:
        """The branch whose backbone a run hands out; nothing where there is only one."""
        return None

    @property
    def matching_rule(self) -> MatchingConfig | None:
        """Which cells of two views belong together, if the place they show decides it."""
        return None

    def view_specs(self) -> tuple[ViewSpec, ...]:
        """The views of one image, in the order the method gets them."""
        raise NotImplementedError

    def build(self, backbone: Backbone) -> Method:
        """The method as a module around ``backbone``; imports torch."""
        raise NotImplementedError

    def for_classes(self, count: int) -> Self:
        """The same method for images of ``count`` classes, if it needs labels."""
        raise NotImplementedError

    def metrics(self, run: PretrainConfig) -> Iterable[Metric]:
        """What it logs besides the metrics of all runs, and how that is judged; without torch.

        An entry with the name of a common metric takes its place.
        """
        return ()

    def summary(self) -> dict[str, str]:
        """What the user should see at the start of a run, besides the common facts."""
        return {}


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Ranged):
    """A downstream task; subclasses add the fields, the published protocol and the task itself."""

    name: ClassVar[str]
    is_published: ClassVar[bool] = True
    """Whether a protocol stands behind it; otherwise a run is fitted to its data and device."""

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """The complete published protocol, starting from ``backbone``."""
        raise NotImplementedError

    def build(self) -> Task:
        """The task that reads data, builds the model and scores it; imports torch."""
        raise NotImplementedError
