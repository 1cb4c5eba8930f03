"""A study in its folder: its cells, their configs, and whether they still agree with each other."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

from clove_ssl.atomic import write_text
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.json_files import read_json
from clove_ssl.config.pretraining import SCENES, LateViewsConfig, PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics, training_steps
from clove_ssl.runs.provenance import last_start
from clove_ssl.study.cells import Cell, StudyFolder, list_cells, state_of
from clove_ssl.study.config import BudgetConfig, FinetuningEntry, ProbeEntry, StudyConfig
from clove_ssl.study.configs import (
    StudyConfigs,
    backbone_of,
    differing,
    in_time,
    plain,
    without_folders,
)


@dataclass(frozen=True)
class Timing:
    """The speed of a pre-training on a device."""

    seconds_per_step: float
    data_wait: float  # share of that time
    timed_steps: int
    device: str

    def steps_in(self, seconds: float) -> int:
        """Steps that fit; one at least."""
        return max(1, math.floor(seconds / self.seconds_per_step))


def time_steps(place: RunDirectory, config: PretrainConfig, budget: BudgetConfig) -> Timing:
    """Time a short run and write down its speed; the run itself is thrown away."""
    short = place.path / "run"
    shutil.rmtree(short, ignore_errors=True)  # a timing that was interrupted is of no use
    every = budget.timed_steps
    warm = every * math.ceil(budget.warm_steps / every)  # log lines stand at multiples of every
    timed = replace(
        in_time(config),
        late_views=LateViewsConfig(),  # or the last steps of a short run would be timed alone
        out=short,
        steps=warm + every,
        logging=replace(config.logging, every=every, wandb_project=None),
    )
    result = pretraining.pretrain(timed)
    if not result.finished:
        raise KeyboardInterrupt
    last = training_steps(read_metrics(RunDirectory(short)))[-1]
    timing = Timing(
        seconds_per_step=config.batch_size
        / last["images_per_second"]
        * config.late_views.cost(config.method.view_specs()),
        data_wait=last["data_wait"],
        timed_steps=every,
        device=str(last_start(RunDirectory(short))["device"]),
    )
    write_text(place.scores, json.dumps(timing.__dict__, indent=1) + "\n")
    shutil.rmtree(short)
    return timing


def read_timing(place: RunDirectory) -> Timing | None:
    """What a timing found, if it was made."""
    if not place.scores.is_file():
        return None
    remedy = "Delete it, then start the study again."
    timing: Timing = read_json(place.scores, Timing, remedy=remedy)
    if not 0 < timing.seconds_per_step < math.inf:
        raise UserError(f"{place.scores} is damaged: no step takes that long. {remedy}")
    return timing


CellConfig = PretrainConfig | ProbeConfig | FinetuneConfig


@dataclass(frozen=True)
class StudyPlan:
    """What is to be done, and where."""

    configs: StudyConfigs
    folder: StudyFolder
    cells: tuple[Cell, ...]

    @property
    def config(self) -> StudyConfig:
        """The study as it was asked for."""
        return self.configs.study

    def config_of(self, cell: Cell) -> CellConfig:
        """The complete config of a cell; that of a timed pre-training needs its timing."""
        run = self.folder.run(cell.name)
        if isinstance(cell.measure, ProbeEntry):
            # The file and not the run: probes of one run may go on side by side.
            return self.configs.probe(cell.measure, backbone=self._backbone(cell, is_file=True))
        if isinstance(cell.measure, FinetuningEntry):
            backbone = self._backbone(cell, is_file=False)
            return self.configs.finetuning(
                cell.measure, backbone=backbone, seed=cell.finetuning_seed, out=run.path
            )
        return self.configs.pretraining(
            cell.entry, seed=cell.seed, out=run.path, steps_in_time=self._steps_in_time(cell)
        )

    def missing(self, cell: Cell) -> list[str]:
        """The cells that have to be done before this one and are not."""
        return [n for n in cell.needs if state_of(self._by_name[n], self.folder) != "done"]

    def keep(self, cell: Cell) -> None:
        """Write down what a cell is started with; refuse what differs from an earlier start."""
        self.check_unchanged([cell])
        path = self.folder.wanted(cell.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump(plain(self.config_of(cell)), sort_keys=False))

    def check_unchanged(self, cells: Iterable[Cell]) -> None:
        """Refuse cells that were begun, or done, with other values than the study has now."""
        for cell in cells:
            path, begun = self.folder.wanted(cell.name), self._begun_with(cell)
            if not begun or not path.is_file():
                continue
            before, now = files.read_values(path), plain(self.config_of(cell))
            if changed := sorted(differing(without_folders(before), without_folders(now))):
                raise UserError(
                    f"{cell.name} was started with other values of {', '.join(changed)}. Give the "
                    "study another --out, change them back, or delete "
                    f"{', '.join(str(self.folder.run(each.name).path) for each in begun)}."
                )

    def _begun_with(self, cell: Cell) -> list[Cell]:
        """Of a cell and those that stand on it, what was begun.

        Scores of a backbone that was deleted would stand in the row of the next one.
        """
        related = [each for each in self.cells if cell.name in (each.name, *each.needs)]
        return [each for each in related if state_of(each, self.folder) != "open"]

    def _steps_in_time(self, cell: Cell) -> int | None:
        if self.config.budget.kind != "seconds" or not cell.needs:
            return None
        timing = read_timing(self.folder.run(cell.needs[0]))
        assert self.config.budget.amount is not None
        return timing.steps_in(self.config.budget.amount) if timing else None

    def _backbone(self, cell: Cell, *, is_file: bool) -> str:
        if cell.entry.backbone is not None:
            return backbone_of(cell.entry, cell.seed)
        made = self.folder.run(cell.needs[0])
        return str(made.backbone if is_file else made.path)

    @cached_property  # slots ask ten times a second what every waiting cell misses
    def _by_name(self) -> dict[str, Cell]:
        return {cell.name: cell for cell in self.cells}


def make_plan(config: StudyConfig, out: Path) -> StudyPlan:
    """Lay out a study, and find what is wrong with any of its configs."""
    configs = StudyConfigs(config)
    plan = StudyPlan(configs, StudyFolder(out), list_cells(configs))
    for cell in plan.cells:
        plan.config_of(cell)
    return plan


def check_data(plan: StudyPlan, cells: tuple[Cell, ...]) -> None:
    """Refuse folders that are not there, before hours have gone into other cells."""
    problems = sorted({problem for cell in cells for problem in _missing_data(plan, cell)})
    if problems:
        raise UserError(
            "The study needs images that are not there:\n  "
            + "\n  ".join(problems)
            + "\nName them with --data PHOTOS and --labelled NAME FOLDER, for example: --labelled "
            "voc VOCdevkit"
        )


def save_study(plan: StudyPlan) -> None:
    """Write ``study.yaml``, from which the study can be started again."""
    try:
        plan.folder.path.mkdir(parents=True, exist_ok=True)
        files.save(plan.config, plan.folder.study)
    except OSError as error:
        raise UserError(
            f"{plan.folder.path} cannot be written: {error.strerror}. Give --out a folder you may "
            "write to."
        ) from None


def _missing_data(plan: StudyPlan, cell: Cell) -> Iterator[str]:
    known = plan.config.data.labelled
    if isinstance(cell.measure, FinetuningEntry):
        name, root = cell.measure.data_name, known.get(cell.measure.data_name, SCENES)
    elif isinstance(cell.measure, ProbeEntry):
        name, root = cell.measure.data, known.get(cell.measure.data, cell.measure.data)
    elif plan.config.data.pretrain is not None:
        name, root = "images to pre-train on", plan.config.data.pretrain
    else:
        return
    is_pattern = any(sign in root for sign in "*?[{:")  # shards, perhaps behind a URL
    if root != SCENES and not is_pattern and not Path(root).expanduser().exists():
        yield name if name == root else f"{name}: {root}"
