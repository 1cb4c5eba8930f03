"""What a study compares: pre-trainings, and how each of them is measured.

A study is a matrix: every pre-training is repeated with its seeds, and each of these runs is
probed and fine-tuned in the same ways. It is a strict YAML file; ``clove study`` also knows some
by name. Values under ``changes`` are nested as in the config file of a run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from clove_ssl.config.limits import check_least
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.study.paper_tables import ROW_KEYS

Changes = dict[str, Any]
BudgetKind = Literal["recipe", "epochs", "steps", "seconds"]
CellKind = Literal["timing", "pretrain", "probe", "finetune"]
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")  # names files together with others


@dataclass(frozen=True, kw_only=True)
class PretrainingEntry:
    """A row of the tables: one way to get a backbone, with several seeds."""

    label: str
    """Name in tables and folders."""
    recipe: str | None = None
    """Any of ``clove list recipes``."""
    config: Path | None = None
    """A config file, instead of a recipe."""
    backbone: str | None = None
    """A run or a released checkpoint that exists already, instead of pre-training one."""
    changes: Changes = field(default_factory=dict)
    """What differs from the recipe or file."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the pre-training; the same ones make methods comparable in pairs."""
    rows: tuple[str, ...] = ()
    """Rows of the paper's tables that it stands for, such as clove-200 or negatives-inter."""

    def __post_init__(self) -> None:
        _check_label("pretrainings", self.label)
        given = [self.recipe, self.config, self.backbone]
        if sum(value is not None for value in given) != 1:
            raise UserError(
                f"pretrainings: {self.label} needs exactly one of recipe, config and backbone. "
                "For example: {label: clove, recipe: clove-r18-small}"
            )
        _check_seeds(self.label, self.seeds)
        for row in self.rows:
            if row not in ROW_KEYS:
                raise unknown_name("row of the paper's tables", row, ROW_KEYS)


@dataclass(frozen=True, kw_only=True)
class ProbeEntry:
    """A probe of frozen features, made with every backbone."""

    label: str
    data: str = "scenes"
    """A name under ``data.labelled``, or what ``clove probe --data`` takes."""
    figure: str | None = None
    """The figure that counts, by default the first probe under ``changes``, or segmentation; the
    others are kept as well."""
    changes: Changes = field(default_factory=dict)
    """Other options of ``clove probe``."""

    def __post_init__(self) -> None:
        _check_label("probes", self.label)

    @property
    def main_figure(self) -> str:
        """The figure that counts."""
        asked_for = self.changes.get("probe") or ["segmentation"]
        return self.figure or str(asked_for[0])


@dataclass(frozen=True, kw_only=True)
class FinetuningEntry:
    """A downstream task that every backbone is fine-tuned on."""

    label: str
    task: str
    """Any of ``clove list tasks``."""
    data: str | None = None
    """A name under ``data.labelled``; by default the first part of the task's name, such as voc.
    ``scenes`` takes built-in ones."""
    changes: Changes = field(default_factory=dict)
    """What differs from the task's protocol."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the fine-tuning, the same for every backbone."""

    def __post_init__(self) -> None:
        _check_label("finetunings", self.label)
        _check_seeds(self.label, self.seeds)

    @property
    def data_name(self) -> str:
        """The name of its images under ``data.labelled``."""
        return self.data if self.data is not None else self.task.partition("-")[0]


@dataclass(frozen=True, kw_only=True)
class StudyDataConfig:
    """Where images are; a study is the same one wherever they lie."""

    pretrain: str | None = None
    """Images to pre-train on, as ``clove pretrain --data`` takes them; by default the recipe's."""
    pretrain_name: str | None = None
    """What these images are called in tables; by default their path."""
    images: int | None = None
    """How many there are, for estimates where they are not at hand."""
    labelled: dict[str, str] = field(default_factory=dict)
    """Folders of labelled images by name: voc, coco, lvis, cityscapes."""

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(
                f"data: images is {self.images}; expected how many there are, 1 or more. Leave it "
                "out to have them counted."
            )


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """How long each pre-training is; the same for all but those that train nothing."""

    kind: BudgetKind = "recipe"
    """``recipe``: as long as each recipe says; ``epochs`` and ``steps``: this many; ``seconds``:
    as many steps as fit into this time on the device, found by a short timing before."""
    amount: float | None = None
    timed_steps: int = 20
    """Steps that are timed for a budget in seconds."""
    warm_steps: int = 10
    """Steps before those, at least, which are not counted."""

    def __post_init__(self) -> None:
        if (self.kind == "recipe") != (self.amount is None) or not self._is_possible():
            raise UserError(
                f"budget: kind {self.kind} with amount {self.amount}: expected no amount for "
                "recipe, whole epochs or steps from 1 on, or seconds above 0. For example: "
                "{kind: seconds, amount: 120}"
            )
        if min(self.timed_steps, self.warm_steps) < 1:
            raise UserError(
                f"budget: timed_steps={self.timed_steps}, warm_steps={self.warm_steps}: both must "
                "be 1 or more. Leave them out for 20 and 10."
            )

    def _is_possible(self) -> bool:
        amount = 1.0 if self.amount is None else self.amount
        if not math.isfinite(amount) or amount <= 0:
            return False
        return self.kind == "seconds" or amount % 1 == 0

    def describe(self) -> str:
        """The budget in a few words."""
        if self.amount is None:
            return "as each recipe says"
        return f"{self.amount:g} {self.kind}" + " on the device" * (self.kind == "seconds")


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
    """What differs from the recipe in every pre-training; those of an entry win."""
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
class StudyRunConfig:
    """Run a study, continue it, or show what it would cost; see docs/study.md."""

    study: Annotated[str, tyro.conf.Positional]
    """``smoke``, ``quick``, ``quick-ablations``, ``paper-main``, ``paper-ablations``, or a YAML
    file."""
    out: Path
    """Folder of the study; what is done there is not done again."""
    data: str | None = None
    """Images to pre-train on, instead of those the study names."""
    labelled: dict[str, str] = field(default_factory=dict)
    """Folders of labelled images, by name and path: --labelled voc VOCdevkit coco coco2017."""
    only: tuple[str, ...] = ()
    """Pre-trainings to run now, by label; by default all."""
    kinds: tuple[CellKind, ...] = ()
    """Kinds of cells to run now; by default all."""
    measures: tuple[str, ...] = ()
    """Probes and fine-tunings to run now, by label; by default all."""
    seeds: tuple[int, ...] = ()
    """Seeds of all pre-trainings, instead of those the study names."""
    budget: BudgetKind | None = None
    """Kind of budget, with ``amount``, instead of the study's."""
    amount: float | None = None
    """Epochs, steps or seconds of that budget."""
    iterations: int | None = None
    """Length of all fine-tunings, instead of those the study names."""
    devices: tuple[int, ...] = ()
    """GPUs that work at the same time, by number; by default one cell runs after the other. A GPU
    that is named twice works on two cells at once, but for timings, which it makes alone."""
    gpus_per_cell: int = 1
    """GPUs that share a cell, started with torchrun."""
    cell: str | None = None
    """Run a single cell, by its number or name, as the tasks of a SLURM array do; ``-`` reads names
    from standard input and runs one cell after the other."""
    dry_run: bool = False
    """Print the cells and what they cost; nothing is run or written."""
    bench: tuple[Path, ...] = ()
    """Results of ``clove bench --out`` that costs are estimated from."""
    print_slurm: bool = False
    """Print a script that submits the study as SLURM arrays."""
    report: bool = False
    """Only write the tables of what is done."""
    processes: Literal["auto", "one", "many"] = "auto"
    """Run cells in this process, or in one for each group of GPUs; ``auto`` takes many with a GPU,
    so that whatever befalls a cell ends no other."""

    def __post_init__(self) -> None:
        if (self.budget in (None, "recipe")) != (self.amount is None):
            raise UserError(
                f"--budget {self.budget} with --amount {self.amount}: epochs, steps and seconds "
                "need an amount, recipe has none. For example: --budget seconds --amount 120"
            )
        check_least(1, iterations=self.iterations)
        if self.gpus_per_cell < 1 or len(self.devices) % self.gpus_per_cell:
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


def _check_seeds(label: str, seeds: tuple[int, ...]) -> None:
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UserError(
            f"{label}: seeds are {list(seeds)}; expected one at least, all different and none "
            "below 0. For example: seeds: [0, 1, 2]"
        )
