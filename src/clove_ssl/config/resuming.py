"""What may change about a run when it goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from clove_ssl.config.ranges import BatchSize, Epochs, Ranged, Share, Steps
from clove_ssl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ResumeChanges(Ranged):
    """Everything that need not be as it was; nothing else can change."""

    micro_batch: BatchSize | None = None
    """Images per forward pass and process, if another number of processes needs a different value
    than the run was started with."""
    data: tuple[str, ...] = ()
    """Where the images are now, if they were moved; names and order must be the same."""
    epochs: Epochs | None = None
    """Make a pre-training run this long instead, even a finished one; its schedules are
    stretched."""
    steps: Steps | None = None
    """The same in optimizer steps."""
    max_bad: Annotated[Share | None, tyro.conf.arg(aliases=["--data.max-bad"])] = None
    """Share of unreadable files above which the run stops, instead of the one it was started
    with."""

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UserError(
                f"epochs={self.epochs} and steps={self.steps} both say how long the run is. Leave "
                "one of them out."
            )

    @property
    def changes_length(self) -> bool:
        """Whether the run shall have another number of steps."""
        return self.epochs is not None or self.steps is not None
