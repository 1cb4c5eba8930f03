"""What every downstream task's config has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from clove_ssl.config.finetuning import FinetuneConfig
    from clove_ssl.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A downstream task; subclasses add the fields, the published protocol and the task itself."""

    name: ClassVar[str]

    @classmethod
    def protocol(cls, out: Path, backbone: str) -> FinetuneConfig:
        """The complete published protocol, starting from ``backbone``."""
        raise NotImplementedError

    def build(self) -> Task:
        """The task that reads data, builds the model and scores it; imports torch."""
        raise NotImplementedError
