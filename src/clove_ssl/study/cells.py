"""The cells of a study, in an order in which they can be run.

Timings come first, then pre-trainings, then what measures them; a cell needs those that its
``needs`` name. Whether a cell is done is asked of its run directory alone, so a study can be
interrupted, copied and extended at any time. A cell has a folder of its own, named by what is done:
``timing/clove``, ``pretrain/clove-s0``, ``probe/dense/clove-s0``, ``finetune/voc-c4/clove-s0-f1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from clove_ssl.config.regular_files import read_regular
from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory, held
from clove_ssl.study.config import CellKind, FinetuningEntry, PretrainingEntry, ProbeEntry
from clove_ssl.study.configs import StudyConfigs

_LONGEST_FAILURE = 2**20  # bytes of a message


class CellInUse(UserError):
    """Another process is working on a cell."""


@dataclass(frozen=True)
class StudyFolder:
    """Names of everything a study writes."""

    path: Path

    @property
    def study(self) -> Path:
        return self.path / "study.yaml"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    def tables(self, suffix: str) -> Path:
        """All tables in one format: md, csv or tex."""
        return self.path / f"tables.{suffix}"

    def run(self, cell: str) -> RunDirectory:
        """The run directory of a cell."""
        return RunDirectory(self.path / cell)

    def wanted(self, cell: str) -> Path:
        """The config that a cell was started with."""
        return self._about(cell, "yaml")

    def failure(self, cell: str) -> Path:
        """Why a cell failed the last time."""
        return self._about(cell, "failure.txt")

    def why_failed(self, cell: str) -> str:
        """The last line of what was written down about a failure; empty where there is none."""
        try:
            text = read_regular(self.failure(cell), most=_LONGEST_FAILURE)
        except OSError:
            return ""
        lines = text.decode("utf-8", "backslashreplace").strip().splitlines()
        return lines[-1] if lines else "an unknown reason"

    def output(self, cell: str) -> Path:
        """What a cell said in another process."""
        return self._about(cell, "log")

    def said(self, slot: int) -> Path:
        """What the process of a slot said outside of cells."""
        return self.path / "cells" / f"worker-{slot}.log"

    def _about(self, cell: str, suffix: str) -> Path:
        return self.path / "cells" / f"{cell.replace('/', '--')}.{suffix}"

    @contextmanager
    def working_on(self, cell: str) -> Iterator[None]:
        """Hold a cell for this process; the lock goes with the process, however it ends."""
        lock = self._about(cell, "lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(held(lock))
            except BlockingIOError:
                raise CellInUse(
                    f"{cell} is being worked on by another process. Wait for it, then start the "
                    "study again."
                ) from None
            yield


KINDS: tuple[CellKind, ...] = get_args(CellKind)
"""In the order in which they depend on each other."""
CellState = Literal["done", "begun", "open"]


@dataclass(frozen=True)
class Cell:
    """One piece of work."""

    name: str
    kind: CellKind
    entry: PretrainingEntry
    seed: int  # of the pre-training
    needs: tuple[str, ...] = ()
    measure: ProbeEntry | FinetuningEntry | None = None
    finetuning_seed: int = 0

    @property
    def measure_label(self) -> str:
        """The label of what is measured, if this is a measurement."""
        return self.measure.label if self.measure else ""


def list_cells(configs: StudyConfigs) -> tuple[Cell, ...]:
    """All cells of a study, needed ones before those that need them.

    Everything is pre-trained with its first seed before anything is with its second, so that a
    study that runs out of time has whole tables of fewer seeds.
    """
    study = configs.study
    cells = [cell for entry in study.pretrainings for cell in _cells_of(configs, entry)]
    return tuple(sorted(cells, key=_turn))


def _turn(cell: Cell) -> tuple[int, int]:
    kind = KINDS.index(cell.kind)
    return kind, 0 if cell.kind == "timing" else cell.entry.seeds.index(cell.seed)


def find_cell(cells: tuple[Cell, ...], asked: str) -> Cell:
    """A cell by its name or by its number in the list."""
    by_name = {cell.name: cell for cell in cells}
    if asked in by_name:
        return by_name[asked]
    by_number = {str(number): cell for number, cell in enumerate(cells)}
    if asked in by_number:
        return by_number[asked]
    raise UserError(
        f"--cell {asked} is no cell of this study, which has 0 to {len(cells) - 1}. List them with "
        "--dry-run."
    )


def state_of(cell: Cell, folder: StudyFolder) -> CellState:
    """How far a cell has come, by what lies in its folder."""
    run = folder.run(cell.name)
    # A run that was stopped between the two files writes both again when it is resumed.
    written = run.backbone.is_file() and run.model_card.is_file()
    done = written if cell.kind == "pretrain" else run.scores.is_file()
    if done:
        return "done"
    return "begun" if run.path.exists() else "open"


def _cells_of(configs: StudyConfigs, entry: PretrainingEntry) -> Iterator[Cell]:
    study, timed = configs.study, f"timing/{entry.label}"
    is_timed = study.budget.kind == "seconds" and _trains(configs, entry)
    if is_timed:
        yield Cell(timed, "timing", entry, seed=0)
    for seed in entry.seeds:
        made: tuple[str, ...] = ()
        run = f"{entry.label}-s{seed}"
        if entry.backbone is None:
            made = (f"pretrain/{run}",)
            yield Cell(made[0], "pretrain", entry, seed, needs=((timed,) if is_timed else ()))
        for probe in study.probes:
            yield Cell(f"probe/{probe.label}/{run}", "probe", entry, seed, made, probe)
        for task in study.finetunings:
            for number in task.seeds:
                name = f"finetune/{task.label}/{run}-f{number}"
                yield Cell(name, "finetune", entry, seed, made, task, number)


def _trains(configs: StudyConfigs, entry: PretrainingEntry) -> bool:
    return entry.backbone is None and configs.base(entry).method.trains
