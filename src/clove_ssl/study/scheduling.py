"""Cells one after the other in this process, or side by side in others.

Each slot is a group of GPUs and a process that works on one cell at a time. A cell that fails is
written down and the rest goes on; what needs it is left for the next start.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from clove_ssl.console import Console, Work, duration
from clove_ssl.errors import UserError
from clove_ssl.study.cells import KINDS, Cell, CellInUse, state_of
from clove_ssl.study.plan import StudyPlan
from clove_ssl.study.running import FROM_INPUT, record_failure, run_cell

INTERRUPTED = 130  # exit code of a process that was asked to stop
_POLL_SECONDS = 0.1
_LONG_SECONDS = 600
"""After a cell that took longer, starting a fresh process costs next to nothing."""

Status = Literal["done", "already done", "failed", "waiting"]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell at this start."""

    cell: Cell
    status: Status
    message: str = ""


def run_in_turn(plan: StudyPlan, cells: Sequence[Cell], console: Console) -> list[Outcome]:
    """Run cells in this process, in order."""
    return [
        _attempt(plan, cell, console, place=f"{number}/{len(cells)}")
        for number, cell in enumerate(cells, start=1)
    ]


def _attempt(plan: StudyPlan, cell: Cell, console: Console, *, place: str) -> Outcome:
    if settled := _settled(plan, cell):
        return settled
    console.say(f"== {place} {cell.name}")
    try:
        run_cell(plan, cell)
    except CellInUse as error:
        return Outcome(cell, "waiting", str(error))
    except Exception as error:  # whatever it is, the other cells are not to blame
        message = record_failure(plan, cell, error)
        console.warn(f"{cell.name} failed: {message}")
        return Outcome(cell, "failed", message)
    return Outcome(cell, "done" if state_of(cell, plan.folder) == "done" else "waiting")


def _settled(plan: StudyPlan, cell: Cell) -> Outcome | None:
    """The outcome of a cell that cannot or need not be started."""
    if state_of(cell, plan.folder) == "done":
        return Outcome(cell, "already done")
    if missing := plan.missing(cell):
        return Outcome(cell, "waiting", f"needs {', '.join(missing)}")
    return None


class _Worker:
    """A process that takes cells one after the other; see :func:`.running.work`."""

    def __init__(self, plan: StudyPlan, slot: int, group: tuple[int, ...], *, gpus: int) -> None:
        self._plan = plan
        said = plan.folder.said(slot)
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("ab") as errors:
            self._process = subprocess.Popen(
                worker_command(plan, gpus=gpus),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(group),
                start_new_session=True,  # Ctrl-C reaches it once, through us
            )
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        self._orders, self._answers = orders, answers
        os.set_blocking(self._answers.fileno(), False)
        self._said = said
        self.cell: Cell | None = None
        self._started = 0.0

    def give(self, cell: Cell) -> None:
        """Hand it a cell; a process that is gone already is noticed when it is asked."""
        self.cell, self._started = cell, time.monotonic()
        with suppress(BrokenPipeError):
            self._orders.write(f"{cell.name}\n".encode())
            self._orders.flush()

    def outcome(self) -> Outcome | None:
        """What became of its cell, once that is known; the worker is free then."""
        code = self._process.poll()
        answer = (self._answers.readline() or b"").decode().strip()
        if not answer and code is None:
            return None
        assert self.cell is not None
        outcome = self._judge(self.cell, answer, code)
        self.cell = None
        if answer in ("", "broken") or self.seconds > _LONG_SECONDS:
            self.end()
        return outcome

    @property
    def seconds(self) -> float:
        """How long its cell takes, or took."""
        return time.monotonic() - self._started

    @property
    def is_usable(self) -> bool:
        """Whether it can be given another cell."""
        return self._process.poll() is None and not self._orders.closed

    def _judge(self, cell: Cell, answer: str, code: int | None) -> Outcome:
        folder = self._plan.folder
        if state_of(cell, folder) == "done":
            return Outcome(cell, "done")
        if answer == "in-use":
            return Outcome(cell, "waiting", "is being worked on by another process")
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if answer and (reason := folder.why_failed(cell.name)):
            return Outcome(cell, "failed", reason)
        message = (
            f"the process ended with code {code}; {folder.output(cell.name)} and {self._said} have "
            "what it said"
        )
        return Outcome(cell, "failed", message)

    def end(self) -> None:
        """Let it end when it has nothing to do."""
        with suppress(BrokenPipeError):
            self._orders.close()
        if self.cell is None:
            self._process.wait()

    def stop(self) -> None:
        """Ask its cell to stop, which writes a checkpoint."""
        self._process.terminate()

    def wait(self) -> None:
        """Wait for the process to be gone."""
        self._process.wait()


class Slots:
    """Groups of GPUs, each busy with one cell or free."""

    def __init__(
        self, plan: StudyPlan, groups: Sequence[Sequence[int]], console: Console, *, gpus: int
    ) -> None:
        self._plan = plan
        self._console = console
        self._gpus = gpus
        self._groups = [tuple(group) for group in groups] or [()]
        self._workers: dict[int, _Worker] = {}

    def run(self, cells: Sequence[Cell]) -> list[Outcome]:
        """Run cells as soon as what they need is done and a slot is free."""
        waiting, outcomes = list(cells), list[Outcome]()
        to_do = sum(state_of(cell, self._plan.folder) != "done" for cell in cells)
        try:
            with self._console.working("cells", total=to_do) as shown:
                while waiting or self._busy():
                    self._start(waiting, outcomes)
                    outcomes += self._collect()
                    if not self._busy() and not any(self._is_ready(cell) for cell in waiting):
                        break
                    self._show(shown, outcomes)
                    time.sleep(_POLL_SECONDS)
        except BaseException:
            self._end_all()
            raise
        for worker in self._workers.values():
            worker.end()
        left = [_settled(self._plan, cell) or Outcome(cell, "waiting") for cell in waiting]
        return outcomes + left

    def _show(self, shown: Work, outcomes: Sequence[Outcome]) -> None:
        """How many cells were run, and what those that are running are."""
        shown.reached(sum(outcome.status != "already done" for outcome in outcomes))
        workers = self._workers.values()
        names = (f"{one.cell.name} {duration(one.seconds)}" for one in workers if one.cell)
        shown.doing(", ".join(names))

    def _busy(self) -> dict[int, Cell]:
        return {slot: worker.cell for slot, worker in self._workers.items() if worker.cell}

    def _start(self, waiting: list[Cell], outcomes: list[Outcome]) -> None:
        for cell in list(waiting):
            if state_of(cell, self._plan.folder) == "done":
                waiting.remove(cell)
                outcomes.append(Outcome(cell, "already done"))
            elif self._is_ready(cell) and (slot := self._free_slot(cell)) is not None:
                waiting.remove(cell)
                self._give(slot, cell)

    def _is_ready(self, cell: Cell) -> bool:
        return not self._plan.missing(cell)

    def _free_slot(self, cell: Cell) -> int | None:
        """A slot for a cell; while steps are timed on a GPU, nothing else runs there."""
        busy = self._busy()
        for slot, group in enumerate(self._groups):
            others = [one for number, one in busy.items() if _share(group, self._groups[number])]
            alone = cell.kind == "timing" or any(one.kind == "timing" for one in others)
            if slot not in busy and not (alone and others):
                return slot
        return None

    def _give(self, slot: int, cell: Cell) -> None:
        group = self._groups[slot]
        worker = self._workers.get(slot)
        if worker is None or not worker.is_usable:
            worker = _Worker(self._plan, slot, group, gpus=self._gpus)
            self._workers[slot] = worker
        self._console.say(
            f"== {cell.name}" + (f" on GPU {', '.join(map(str, group))}" if group else "")
        )
        worker.give(cell)

    def _collect(self) -> list[Outcome]:
        found = []
        for worker in self._workers.values():
            outcome = worker.outcome() if worker.cell else None
            if outcome is not None:
                self._tell(outcome, duration(worker.seconds))
                found.append(outcome)
        return found

    def _tell(self, outcome: Outcome, spent: str) -> None:
        if outcome.status == "done":
            self._console.say(f"   {outcome.cell.name} done after {spent}")
        else:
            word = "failed" if outcome.status == "failed" else "left"
            self._console.warn(f"{outcome.cell.name} {word} after {spent}: {outcome.message}")

    def _end_all(self) -> None:
        """Ask every cell to stop, which writes a checkpoint, and wait for it."""
        for worker in self._workers.values():
            worker.stop()
        for worker in self._workers.values():
            worker.wait()


def _share(one: Iterable[int], other: Iterable[int]) -> bool:
    """Whether two groups have a GPU in common; empty ones stand for the same device."""
    first, second = set(one), set(other)
    return first == second or bool(first & second)


def worker_command(plan: StudyPlan, *, gpus: int) -> list[str]:
    """The command that works on cells of a study whose ``study.yaml`` is written."""
    folder = plan.folder
    command = [sys.executable, "-m", "clove_ssl", "study", str(folder.study)]
    command += ["--out", str(folder.path), "--cell", FROM_INPUT]
    return command + (["--gpus-per-cell", str(gpus)] if gpus > 1 else [])


def _environment(group: tuple[int, ...]) -> dict[str, str]:
    """The environment of a cell on a group of the GPUs that this process may use."""
    if not group:
        return {**os.environ}
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        names = [str(number) for number in range(max(group) + 1)]
    else:
        names = list(filter(None, allowed.split(",")))
    if max(group) >= len(names):
        raise UserError(
            f"--devices names GPU {max(group)}, but CUDA_VISIBLE_DEVICES={allowed} leaves "
            f"{len(names)} of them, numbered from 0."
        )
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(names[number] for number in group)}


_HEAD = """\
#!/bin/bash
# Submits a study as SLURM arrays. Start it from this folder: bash FILE
# Options for sbatch (account, partition, time) go into SBATCH_OPTIONS:
#   SBATCH_OPTIONS="--partition gpu --time 24:00:00" bash FILE
# A task that is requeued goes on where it was. Submit again for what failed or ran out of time.
set -euo pipefail"""


def slurm_script(plan: StudyPlan, *, gpus: int) -> str:
    """The script, for ``bash``."""
    return "\n".join(_lines(plan, gpus)) + "\n"


def _lines(plan: StudyPlan, gpus: int) -> Iterator[str]:
    folder = plan.folder
    study = f"clove study {shlex.quote(str(folder.study))} --out {shlex.quote(str(folder.path))}"
    together = f" --gpus-per-cell {gpus}" if gpus > 1 else ""
    logs = shlex.quote(f"{folder.path}/cells/slurm-%A-%a.txt")
    yield _HEAD
    before = ""
    for kind in KINDS:
        numbers = [n for n, cell in enumerate(plan.cells) if cell.kind == kind]
        if not numbers:
            continue
        # A failed cell must not hold up the others, hence afterany; what needs it says so.
        after = f'--dependency "afterany:${before}" ' if before else ""
        work = f'{study} --cell "$SLURM_ARRAY_TASK_ID"{together}'
        yield ""
        yield f"{kind}=$(sbatch ${{SBATCH_OPTIONS:-}} --parsable --requeue --signal B:TERM@120 \\"
        yield f"  --gpus-per-task {gpus} --ntasks 1 --array {numbers[0]}-{numbers[-1]} \\"
        yield f"  {after}--output {logs} --wrap {shlex.quote('exec ' + work)})"
        yield f'echo "{kind}: job ${kind}, {len(numbers)} cells"'
        before = kind
    yield ""
    yield f'sbatch ${{SBATCH_OPTIONS:-}} --dependency "afterany:${before}" --ntasks 1 \\'
    yield f"  --wrap {shlex.quote(study + ' --report')}"
