"""What a comparison will run: parts of the labels, one schedule for each, and the cells.

A schedule is decided once for a part, with the first backbone on this machine, and kept in
``schedules/``. So all backbones take the same steps with the same batches, whatever budget
was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.label_curves import LabelsConfig
from clove_ssl.console import Console, duration
from clove_ssl.errors import UserError, counted
from clove_ssl.finetuning.fitting import Fit
from clove_ssl.finetuning.seeds import fit
from clove_ssl.label_curves.arms import Arm, open_arms
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.study.cells import StudyFolder
from clove_ssl.study.configs import differing, plain, without_folders
from clove_ssl.tasks.base import TaskData
from clove_ssl.text_tables import in_columns


@dataclass(frozen=True)
class LabelsFolder(StudyFolder):
    """Names of everything a comparison writes besides its runs."""

    @property
    def asked(self) -> Path:
        return self.path / "labels.yaml"

    def result(self, suffix: str) -> Path:
        """What came out of it: json, md, svg or html."""
        return self.path / f"labels.{suffix}"

    def schedule(self, percent: float) -> Path:
        """What was decided for a part of the labels."""
        return self.path / "schedules" / f"{_folder_of(percent)}.yaml"


@dataclass(frozen=True)
class LabelPart:
    """A part of the labels, and the fine-tuning that fits it."""

    percent: float
    images: int
    fit: Fit

    @property
    def iterations(self) -> int:
        """Iterations of every run on this part."""
        return self.fit.config.total_iterations


@dataclass(frozen=True)
class LabelCell:
    """One fine-tuning: a backbone, a part of the labels, a seed."""

    arm: Arm
    part: LabelPart
    seed: int

    @property
    def name(self) -> str:
        """Its folder below that of the comparison."""
        return f"{_folder_of(self.part.percent)}/{self.arm.name}-s{self.seed}"

    def config(self, run: RunDirectory) -> FinetuneConfig:
        """What is run."""
        return replace(self.arm.started(self.part.fit.config), out=run.path, seed=self.seed)


@dataclass(frozen=True)
class LabelPlan:
    """What is to be done, and where."""

    config: LabelsConfig
    folder: LabelsFolder
    arms: tuple[Arm, ...]
    parts: tuple[LabelPart, ...]
    train_images: int
    test_images: int

    @property
    def cells(self) -> tuple[LabelCell, ...]:
        """All fine-tunings; each seed for all of a part before the next, so that a comparison that
        runs out of time is one of fewer seeds."""
        return tuple(
            LabelCell(arm, part, seed)
            for seed in self.config.seeds
            for part in self.parts
            for arm in self.arms
        )

    def is_done(self, cell: LabelCell) -> bool:
        """Whether a fine-tuning has its scores."""
        return self.folder.run(cell.name).scores.is_file()

    def check_unchanged(self, cell: LabelCell) -> None:
        """Refuse a run that was begun with something else than this cell."""
        run = self.folder.run(cell.name)
        if not run.config.is_file():
            return
        known, wanted = files.load(FinetuneConfig, run.config), cell.config(run)
        changed = {*differing(without_folders(plain(known)), without_folders(plain(wanted)))}
        changed |= {"backbone"} if known.backbone != wanted.backbone else set()
        if changed:
            raise UserError(
                f"{run.path} was started with other values of {', '.join(sorted(changed))}. Give "
                "another --out, change them back, or delete that folder."
            )

    def save(self) -> None:
        """Write down what was asked for and decided, before anything is run."""
        self.folder.schedule(1).parent.mkdir(parents=True, exist_ok=True)
        files.save(self.config, self.folder.asked)
        for part in self.parts:
            files.save(part.fit, self.folder.schedule(part.percent))


def make_plan(config: LabelsConfig, console: Console) -> LabelPlan:
    """Look at everything that can be wrong, and decide all schedules; nothing is written."""
    folder = LabelsFolder(config.finetuning.out)
    check_folder(config, folder)
    arms = open_arms(config)
    data = config.finetuning.task.build().read(config.finetuning.data)
    sizes = part_sizes(config.fractions, data.train_images)
    _tell_data(config, data, console)
    fits = {percent: _fitted(config, folder, arms[0], data, percent, console) for percent in sizes}
    parts = tuple(LabelPart(percent, size, fits[percent]) for percent, size in sizes.items())
    return LabelPlan(config, folder, arms, parts, data.train_images, data.test_images)


def _tell_data(config: LabelsConfig, data: TaskData, console: Console) -> None:
    """Say what is in the data, what is wrong with them, and which classes parts of them miss."""
    task = config.finetuning.task.build()
    for note in data.notes:
        console.say(note)
    for problem in data.problems:
        console.warn(problem)
    for percent in sorted(set(config.fractions) - {100.0}):
        for seed in config.seeds:
            for problem in task.take_fraction(data, percent / 100, seed=seed).problems:
                console.warn(f"{percent:g} % of the labels, seed {seed}: {problem}")


def check_folder(config: LabelsConfig, folder: LabelsFolder) -> None:
    """Refuse a folder of something else, or of a comparison with other options."""
    path = folder.path
    if path.is_file():
        raise UserError(f"{path} is a file. Give a new folder, for example --out {path}-labels.")
    if path.is_dir() and any(path.iterdir()) and not folder.asked.is_file():
        raise UserError(
            f"{path} is not empty and holds no comparison of clove labels. Give a new "
            f"folder, for example --out {path}-labels."
        )
    if not folder.asked.is_file():
        return
    before = files.load(LabelsConfig, folder.asked)
    if changed := sorted(differing(_lasting(before), _lasting(config))):
        raise UserError(
            f"{folder.path} was started with other values of {', '.join(changed)}. Give another "
            "--out, or change them back; only --backbones, --fractions and --runs may grow."
        )


def _lasting(config: LabelsConfig) -> dict[str, Any]:
    """What has to stay as it is while a comparison goes on."""
    shared = config.finetuning
    same = replace(shared, runs=1, data=replace(shared.data, workers=None))
    return without_folders(plain(same))


def part_sizes(percents: tuple[float, ...], images: int) -> dict[float, int]:
    """Images of every part, the smallest first; refuses parts without images, and equal ones."""
    sizes = {percent: round(percent / 100 * images) for percent in sorted(percents)}
    for percent, size in sizes.items():
        twins = [f"{other:g}" for other, count in sizes.items() if count == size]
        if size < 1:
            raise UserError(
                f"--fractions {percent:g}: {percent:g} % of {images:,} training images is less "
                f"than one image. Give {100 / images:.2g} or more."
            )
        if len(twins) > 1:
            raise UserError(
                f"--fractions {' '.join(twins)}: of {images:,} training images each is "
                f"{counted(size, 'image')}, so they are the same. Leave one out."
            )
    return sizes


def _fitted(
    config: LabelsConfig,
    folder: LabelsFolder,
    arm: Arm,
    data: TaskData,
    percent: float,
    console: Console,
) -> Fit:
    """The schedule of a part, as it was decided at an earlier start, or now."""
    kept = folder.schedule(percent)
    if kept.is_file():
        return files.load(Fit, kept)
    console.say(f"{percent:g} % of the labels")
    whole = replace(arm.started(config.finetuning), fraction=percent / 100, runs=1)
    return fit(whole, replace(data, notes=(), problems=()))


def describe_plan(plan: LabelPlan) -> Iterator[str]:
    """What will be run, and how long that takes."""
    left = [cell for cell in plan.cells if not plan.is_done(cell)]
    rows = [["labels", "images", "steps", "batch", "runs", "to do", "time of a run"]]
    for part in plan.parts:
        to_do = sum(cell.part is part for cell in left)
        rows.append(
            [
                f"{part.percent:g} %",
                f"{part.images:,}",
                f"{part.iterations:,}",
                str(part.fit.config.effective_batch),
                str(len(plan.arms) * plan.config.finetuning.runs),
                str(to_do),
                duration(part.fit.seconds),
            ]
        )
    yield f"Backbones: {', '.join(arm.name for arm in plan.arms)}"
    yield from (f"  {line}" for line in in_columns(rows, side="right"))
    seconds = sum(cell.part.fit.seconds for cell in left)
    yield (
        f"All backbones are trained on the same images with the same steps and batches, and tested "
        f"on the same {counted(plan.test_images, 'image')}."
    )
    yield f"{counted(len(left), 'run')} to do, about {duration(seconds)} in all."


def _folder_of(percent: float) -> str:
    return f"fraction-{percent:g}"
