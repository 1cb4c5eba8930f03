"""The backbone that fine-tuning starts from, and how much of it came from a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from clove_ssl.backbones.build import Backbone, build_backbone
from clove_ssl.config.finetuning import RANDOM, FinetuneConfig
from clove_ssl.config.json_files import read_json
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory, list_checkpoints
from clove_ssl.tasks.base import Task
from clove_ssl.weights.architectures import DoesNotFit
from clove_ssl.weights.load import LoadReport, load_weights, read_backbone

DEFAULT_ARCHITECTURE = "resnet50"


@dataclass(frozen=True)
class StartingPoint:
    """A backbone and where its weights are from."""

    backbone: Backbone
    origin: str
    report: LoadReport | None  # none for random weights
    remembered: str = ""  # what a resumed run said about its start

    def describe(self) -> str:
        """One line for people."""
        if self.remembered:
            return self.remembered
        name, report = self.backbone.name, self.report
        if report is None:
            return f"{name} with random weights"
        loaded = f"{report.matched} of {report.expected} tensors of {name} from {self.origin}"
        return f"{loaded} ({report.layout})"


def open_backbone(config: FinetuneConfig, task: Task) -> StartingPoint:
    """The network in the form the task needs, with the weights that were asked for."""
    if config.backbone == RANDOM:
        name = config.architecture or DEFAULT_ARCHITECTURE
        return StartingPoint(build_backbone(task.backbone_config(name)), RANDOM, None)
    backbone, report = _partial(config, task) if config.allow_partial else _complete(config, task)
    backbone.requires_grad_(True)
    return StartingPoint(backbone, config.backbone, report)


class _KnownFacts(TypedDict):
    backbone: str


class _Known(TypedDict):
    architecture: str
    facts: _KnownFacts


def continued_backbone(
    run: RunDirectory, config: FinetuneConfig, task: Task
) -> StartingPoint | None:
    """The network of a run with checkpoints, which hold all its weights; none before the first.

    Where a run started from may be gone by then.
    """
    if not (run.self_check.is_file() and list_checkpoints(run.checkpoints)):
        return None
    try:
        known: _Known = read_json(run.self_check, _Known, remedy="")
    except UserError:  # damaged, or of an earlier version
        return None
    name, told = known["architecture"], known["facts"]["backbone"]
    backbone = build_backbone(task.backbone_config(name))
    return StartingPoint(backbone, config.backbone, None, remembered=told)


def _complete(config: FinetuneConfig, task: Task) -> tuple[Backbone, LoadReport]:
    try:
        loaded, report = read_backbone(config.backbone, architecture=config.architecture or "")
    except DoesNotFit as error:
        raise UserError(
            f"{error} To start from the tensors that fit, and random ones for the others, add "
            "--allow-partial --architecture NAME."
        ) from None
    backbone = build_backbone(task.backbone_config(loaded.name))
    try:
        backbone.body.load_state_dict(loaded.body.state_dict())  # strides differ, tensors do not
    except RuntimeError:
        raise UserError(
            f"{config.backbone} holds {loaded.name} up to stage {loaded.stage} alone, and this "
            "task needs more of it. Pre-train with --backbone.stage c5, or take what there is: "
            f"--allow-partial --architecture {loaded.name}"
        ) from None
    return backbone, report


def _partial(config: FinetuneConfig, task: Task) -> tuple[Backbone, LoadReport]:
    backbone = build_backbone(task.backbone_config(config.architecture or DEFAULT_ARCHITECTURE))
    return backbone, load_weights(backbone, config.backbone, partial=True)
