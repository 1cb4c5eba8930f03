"""What a study compares: pre-trainings, and how each of them is measured.

A study is a matrix: every pre-training is repeated with its seeds, and each of these runs is
probed and fine-tuned in the same ways. It is a strict YAML file; ``clove study`` also knows some
by name. Values under ``changes`` are nested as in the config file of a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from clove_ssl.config.ranges import ImageCount, Range, Ranged, Seed, Seeds, Steps
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.study.paper_tables import ROW_KEYS

Changes = dict[str, Any]
BudgetKind = Literal["recipe", "epochs", "steps", "seconds"]
CellKind = Literal["timing", "pretrain", "probe", "finetune"]
Amount = Annotated[float, Range(0, 10**9, above=True)]
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")  # names files together with others


@dataclass(frozen=True, kw_only=True)
class PretrainingEntry(Ranged):
    """A row of the tables: one way to get a backbone, with several seeds."""

    label: str
    """Name in tables and folders."""
    recipe: str | None = None
    """Any of ``clove list recipes``."""
    config: Path | None = None
    """A config file, instead of a recipe."""
    backbone: str | None = None
    """An existing run or released checkpoint, instead of pre-training one."""
    changes: Changes = field(default_factory=dict)
    """Options that differ from the recipe or file."""
    seeds: Seeds = (0,)
    """Seeds of the pre-training; use the same ones for all methods, so that they can be compared in
    pairs."""
    rows: tuple[str, ...] = ()
    """Rows of the paper's tables that it corresponds to, such as clove-200 or negatives-inter."""

    def __post_init__(self) -> None:
        _check_label("pretrainings", self.label)
        given = [self.recipe, self.config, self.backbone]
        if sum(value is not None for value in given) != 1:
            raise UserError(
                f"pretrainings: {self.label} needs exactly one of recipe, config and backbone. "
                "For example: {label: clove, recipe: clove-r18-small}"
            )
        for row in self.rows:
            if row not in ROW_KEYS:
                raise unknown_name("row of the paper's tables", row, ROW_KEYS)


@dataclass(frozen=True, kw_only=True)
class ProbeEntry:
    """A probe of frozen features, applied to every backbone."""

    label: str
    data: str = "scenes"
    """A name under ``data.labelled``, or what ``clove probe --data`` takes."""
    figure: str | None = None
    """The score that is shown, by default the first probe under ``changes``, or segmentation; the
    others are stored as well."""
    changes: Changes = field(default_factory=dict)
    """Other options of ``clove probe``."""

    def __post_init__(self) -> None:
        _check_label("probes", self.label)

    @property
    def main_score(self) -> str:
        """The score that counts."""
        asked_for = self.changes.get("probe") or ["segmentation"]
        return self.figure or str(asked_for[0])


@dataclass(frozen=True, kw_only=True)
class FinetuningEntry(Ranged):
    """A downstream task that every backbone is fine-tuned on."""

    label: str
    task: str
    """Any of ``clove list tasks``."""
    data: str | None = None
    """A name under ``data.labelled``; by default the first part of the task's name, such as voc.
    ``scenes`` takes built-in ones."""
    changes: Changes = field(default_factory=dict)
    """Options that differ from the task's protocol."""
    seeds: Seeds = (0,)
    """Seeds of the fine-tuning, the same for every backbone."""

    def __post_init__(self) -> None:
        _check_label("finetunings", self.label)

    @property
    def data_name(self) -> str:
        """The name of its images under ``data.labelled``."""
        return self.data if self.data is not None else self.task.partition("-")[0]


@dataclass(frozen=True, kw_only=True)
class StudyDataConfig(Ranged):
    """Where images are; a study is the same one wherever they lie."""

    pretrain: str | None = None
    """Images to pre-train on, as ``clove pretrain --data`` takes them; by default the recipe's."""
    pretrain_name: str | None = None
    """Name of these images in tables; by default their path."""
    images: ImageCount | None = None
    """Number of images, for estimates on machines that do not have them."""
    labelled: dict[str, str] = field(default_factory=dict)
    """Folders of labelled images by name: voc, coco, lvis, cityscapes."""


@dataclass(frozen=True, kw_only=True)
class BudgetConfig(Ranged):
    """The length of each pre-training; the same for all that train anything."""

    kind: BudgetKind = "recipe"
    """``recipe``: as long as each recipe says; ``epochs`` and ``steps``: this many; ``seconds``: as
    many steps as fit into this time on the device, measured by a short timing before."""
    amount: Amount | None = None
    timed_steps: Steps = 20
    """Steps that are timed for a budget in seconds."""
    warm_steps: Steps = 10
    """Least number of steps before those, which are not counted."""

    def __post_init__(self) -> None:
        is_whole = self.kind == "seconds" or (self.amount or 0) % 1 == 0
        if (self.kind == "recipe") != (self.amount is None) or not is_whole:
            raise UserError(
                f"budget: kind {self.kind} with amount {self.amount}: expected no amount for "
                "recipe, whole epochs or steps from 1 on, or seconds above 0. For example: "
                "{kind: seconds, amount: 120}"
            )

    def describe(self) -> str:
        """The budget in a few words."""
        if self.amount is None:
            return "as each recipe says"
        return f"{self.amount:g} {self.kind}" + (" on the device" if self.kind == "seconds" else "")


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Everything that can influence a study."""

    title: str
    pretrainings: tuple[PretrainingEntry, ...]
    probes: tuple[ProbeEntry, ...] = ()
    finetunings: tuple[FinetuningEntry, ...] = ()
    data: StudyDataConfig = field(default_factory=StudyDataConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    changes: Changes = field(default_factory=dict)
    """Options that differ from the recipe in every pre-training; those of an entry take
    precedence."""
    reference: str | None = None
    """The pre-training that all others are compared with in pairs; by default the last one."""

    def __post_init__(self) -> None:
        if not self.pretrainings:
            raise UserError("A study needs one pre-training at least, under `pretrainings`.")
        for kind in ("pretrainings", "probes", "finetunings"):
            labels = [entry.label for entry in getattr(self, kind)]
            if len(set(labels)) < len(labels):
                raise UserError(f"{kind} has a label twice: {', '.join(labels)}. Rename one.")
        shared = {one.label for one in self.probes} & {one.label for one in self.finetunings}
        if shared:
            raise UserError(
                f"A probe and a fine-tuning are both called {', '.join(sorted(shared))}, as would "
                "be their tables. Rename one."
            )
        if self.reference_label not in [entry.label for entry in self.pretrainings]:
            raise UserError(
                f"reference: {self.reference} is no pre-training of this study. Give one of "
                f"{', '.join(entry.label for entry in self.pretrainings)}."
            )

    @property
    def reference_label(self) -> str:
        """The pre-training that the others are compared with."""
        return self.reference or self.pretrainings[-1].label


@dataclass(frozen=True, kw_only=True)
class StudyRunConfig(Ranged):
    """Run a study, continue it, or show what it would cost; see docs/study.md."""

    study: Annotated[str, tyro.conf.Positional]
    """``smoke``, ``quick``, ``quick-ablations``, ``clove-plus``, ``paper-main``,
    ``paper-ablations``, or a YAML file."""
    out: Path
    """Folder of the study; finished cells in it are not run again."""
    data: str | None = None
    """Images to pre-train on, instead of those in the study."""
    labelled: dict[str, str] = field(default_factory=dict)
    """Folders of labelled images, by name and path: --labelled voc VOCdevkit coco coco2017."""
    only: tuple[str, ...] = ()
    """Pre-trainings to run now, by label; by default all."""
    kinds: tuple[CellKind, ...] = ()
    """Kinds of cells to run now; by default all."""
    measures: tuple[str, ...] = ()
    """Probes and fine-tunings to run now, by label; by default all."""
    seeds: tuple[Seed, ...] = ()
    """Seeds of all pre-trainings, instead of those in the study."""
    budget: BudgetKind | None = None
    """Kind of budget, with ``amount``, instead of the study's."""
    amount: Amount | None = None
    """Epochs, steps or seconds of that budget."""
    iterations: Annotated[Steps | None, tyro.conf.arg(aliases=["--finetune-steps"])] = None
    """Steps of all fine-tunings, instead of those in the study."""
    devices: tuple[Annotated[int, Range(0, 1023)], ...] = ()
    """GPUs that work at the same time, by number; by default one cell runs after the other. A GPU
    that is named twice works on two cells at once, except for timings, which run alone on it."""
    gpus_per_cell: Annotated[int, Range(1, 1024)] = 1
    """GPUs that share a cell, started with torchrun."""
    cell: str | None = None
    """Run a single cell, by its number or name, as the tasks of a SLURM array do; ``-`` reads names
    from standard input and runs one cell after the other."""
    dry_run: bool = False
    """Print the cells and what they cost; nothing is run or written."""
    bench: tuple[Path, ...] = ()
    """Files of ``clove bench --out`` from which costs are estimated."""
    print_slurm: bool = False
    """Print a script that submits the study as SLURM arrays."""
    report: bool = False
    """Only write the tables of the finished cells."""
    beside: tuple[Path, ...] = ()
    """Folders of the same study with other amounts of its budget; scores are then also plotted over
    the budget."""
    processes: Literal["auto", "one", "many"] = "auto"
    """Run cells in this process, or in one for each group of GPUs; ``auto`` takes several with a
    GPU, so that a crash of one cell does not end the others."""

    def __post_init__(self) -> None:
        if (self.budget in (None, "recipe")) != (self.amount is None):
            raise UserError(
                f"--budget {self.budget} with --amount {self.amount}: epochs, steps and seconds "
                "need an amount, recipe has none. For example: --budget seconds --amount 120"
            )
        if len(self.devices) % self.gpus_per_cell:
            raise UserError(
                f"--gpus-per-cell {self.gpus_per_cell} does not divide the {len(self.devices)} "
                "GPUs of --devices. Give a number that does, such as 1."
            )


def _check_label(kind: str, label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise UserError(
            f"{kind}: label {label!r} is no name for a folder. Use letters, digits and . _ + - "
            "only, for example clove-200."
        )
