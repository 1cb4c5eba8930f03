"""What ``clove labels`` takes: a fine-tuning, the backbones to compare, and parts of the labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from clove_ssl.config.finetuning import RANDOM, FinetuneConfig, own_tasks
from clove_ssl.config.ranges import Range, Ranged, Several
from clove_ssl.errors import UserError

Percent = Annotated[float, Range(0, 100, above=True)]


@dataclass(frozen=True, kw_only=True)
class LabelsConfig(Ranged):
    """Fine-tune several backbones on growing parts of the labels, and plot the curves."""

    finetuning: Annotated[FinetuneConfig, tyro.conf.arg(name="")]
    """Options shared by all fine-tunings; ``out`` is the folder of the whole comparison."""
    backbones: tuple[str, ...]
    """Runs or backbone files to compare, all with the same network. ``random`` stands for random
    weights of that network, ``random:NAME`` for random weights of the named one."""
    fractions: Annotated[tuple[Percent, ...], Several(least=1, unlike=True)] = (
        1.0,
        5.0,
        10.0,
        100.0,
    )
    """Percentages of the training images to train on."""
    score: str | None = None
    """The score to plot, such as box_AP50; by default the first one of the task."""
    dry_run: bool = False
    """Only show what would be run and how long it would take; nothing is written."""

    def __post_init__(self) -> None:
        shared = self.finetuning
        if shared.task.is_published:
            raise UserError(
                f"clove labels is for your own classes; {shared.task.name} has a published "
                f"protocol. Choose one of {', '.join(own_tasks())}, or compare backbones on a "
                "protocol: clove study."
            )
        if shared.backbone != RANDOM or shared.fraction != 1 or shared.heads:
            raise UserError(
                "clove labels compares several backbones with fresh heads on several parts of the "
                "labels. Give --backbones and --fractions (in percent) instead of --backbone, "
                "--fraction and --heads."
            )
        if not self.backbones:
            raise UserError(
                "--backbones names none. Give those to compare, for example: --backbones random "
                "runs/photos"
            )

    @property
    def seeds(self) -> range:
        """One for every repetition."""
        return range(self.finetuning.seed, self.finetuning.seed + self.finetuning.runs)


def shared_by_all(config: FinetuneConfig) -> FinetuneConfig:
    """A fine-tuning without what differs from run to run.

    None ends early: all backbones are to take as many steps, whichever learns sooner.
    """
    whole = replace(config.evaluation, patience=None)
    return replace(config, backbone=RANDOM, fraction=1.0, evaluation=whole)
