"""Cells one after the other in this process, or side by side in processes of their own.

Each slot is a group of GPUs that works on one cell at a time. A cell that fails is written down
and the rest goes on; what needs it is left for the next start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Literal

from clove_ssl.console import Console, duration
from clove_ssl.engine.study_cells import Cell, state_of
from clove_ssl.engine.study_plan import StudyPlan
from clove_ssl.engine.study_running import record_failure, run_cell
from clove_ssl.runs.study_folder import CellInUse

INTERRUPTED = 130  # exit code of a process that was asked to stop
IN_USE = "is being worked on by another process"
_POLL_SECONDS = 0.2

Status = Literal["done", "already done", "failed", "waiting"]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell at this start."""

    cell: Cell
    status: Status
    message: str = ""


def run_in_turn(plan: StudyPlan, cells: Sequence[Cell], console: Console) -> list[Outcome]:
    """Run cells in this process, in order."""
    return [_attempt(plan, cell, console) for cell in cells]


def _attempt(plan: StudyPlan, cell: Cell, console: Console) -> Outcome:
    if settled := _settled(plan, cell):
        return settled
    console.say(f"== {cell.name}")
    try:
        run_cell(plan, cell)
    except CellInUse as error:
        return Outcome(cell, "waiting", str(error))
    except Exception as error:  # whatever it is, the other cells are not to blame
        message = record_failure(plan, cell, error)
        console.warn(f"{cell.name} failed: {message}")
        return Outcome(cell, "failed", message)
    return Outcome(cell, "done")


def _settled(plan: StudyPlan, cell: Cell) -> Outcome | None:
    """The outcome of a cell that cannot or need not be started."""
    if state_of(cell, plan.folder) == "done":
        return Outcome(cell, "already done")
    if missing := plan.missing(cell):
        return Outcome(cell, "waiting", f"needs {', '.join(missing)}")
    return None


@dataclass
class _Work:
    cell: Cell
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    started: float


class Slots:
    """Groups of GPUs, each busy with one cell or free."""

    def __init__(
        self, plan: StudyPlan, groups: Sequence[Sequence[int]], console: Console, *, gpus: int
    ) -> None:
        self._plan = plan
        self._console = console
        self._gpus = gpus
        self._groups = [tuple(group) for group in groups] or [()]
        self._busy: dict[int, _Work] = {}

    def run(self, cells: Sequence[Cell]) -> list[Outcome]:
        """Run cells as soon as what they need is done and a slot is free."""
        waiting, outcomes = list(cells), list[Outcome]()
        try:
            while waiting or self._busy:
                self._start(waiting, outcomes)
                outcomes += self._collect()
                if not self._busy and not any(self._is_ready(cell) for cell in waiting):
                    break
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self._end_all()
            raise
        left = [_settled(self._plan, cell) or Outcome(cell, "waiting") for cell in waiting]
        return outcomes + left

    def _start(self, waiting: list[Cell], outcomes: list[Outcome]) -> None:
        for cell in list(waiting):
            if state_of(cell, self._plan.folder) == "done":
                waiting.remove(cell)
                outcomes.append(Outcome(cell, "already done"))
            elif len(self._busy) < len(self._groups) and self._is_ready(cell):
                waiting.remove(cell)
                free = next(n for n in range(len(self._groups)) if n not in self._busy)
                self._busy[free] = self._open(cell, self._groups[free])

    def _is_ready(self, cell: Cell) -> bool:
        return not self._plan.missing(cell)

    def _open(self, cell: Cell, group: tuple[int, ...]) -> _Work:
        log = self._plan.folder.output(cell.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._console.say(f"== {cell.name}" + f" on GPU {', '.join(map(str, group))}" * bool(group))
        output = log.open("ab")
        process = subprocess.Popen(
            cell_command(self._plan, cell, gpus=self._gpus),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(group),
            start_new_session=True,  # Ctrl-C reaches it once, through us
        )
        return _Work(cell, process, output, time.monotonic())

    def _collect(self) -> list[Outcome]:
        ended = {slot: work for slot, work in self._busy.items() if work.process.poll() is not None}
        for slot, work in ended.items():
            work.output.close()
            del self._busy[slot]
        return [self._judge(work) for work in ended.values()]

    def _judge(self, work: _Work) -> Outcome:
        cell, code = work.cell, work.process.returncode
        spent = duration(time.monotonic() - work.started)
        if state_of(cell, self._plan.folder) == "done":
            self._console.say(f"   {cell.name} done after {spent}")
            return Outcome(cell, "done")
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        failure, output = self._plan.folder.failure(cell.name), self._plan.folder.output(cell.name)
        message = failure.read_text().strip() if failure.is_file() else ""
        if not message:
            message = f"the process ended with code {code}; {output} has what it said"
        last = message.splitlines()[-1]
        self._console.warn(f"{cell.name} failed after {spent}: {last}")
        return Outcome(cell, "waiting" if IN_USE in last else "failed", last)

    def _end_all(self) -> None:
        """Ask every cell to stop, which writes a checkpoint, and wait for it."""
        for work in self._busy.values():
            work.process.terminate()
        for work in self._busy.values():
            work.process.wait()
            work.output.close()


def cell_command(plan: StudyPlan, cell: Cell, *, gpus: int) -> list[str]:
    """The command that runs one cell of a study whose ``study.yaml`` is written."""
    folder = plan.folder
    command = [sys.executable, "-m", "clove_ssl", "study", str(folder.study)]
    command += ["--out", str(folder.path), "--cell", cell.name]
    return command + ["--gpus-per-cell", str(gpus)] * (gpus > 1)


def _environment(group: tuple[int, ...]) -> dict[str, str]:
    chosen = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, group))} if group else {}
    return {**os.environ, **chosen}
