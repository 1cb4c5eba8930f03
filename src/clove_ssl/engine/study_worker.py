"""A process that works on cells of a study one after the other, as it is told.

Starting a process takes longer than many a cell: torch has to be read and the GPU to be opened. So
it takes a name per line from its standard input and answers each with one word on its standard
output. What a cell itself says goes to the cell's log.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Literal

import torch

from clove_ssl.engine.study_cells import Cell, find_cell
from clove_ssl.engine.study_plan import StudyPlan
from clove_ssl.engine.study_running import record_failure, run_cell, terminated_like_interrupted
from clove_ssl.errors import UserError
from clove_ssl.runs.study_folder import CellInUse

FROM_INPUT = "-"
"""Stands for the name of a cell where names come from standard input."""
Answer = Literal["done", "in-use", "failed", "broken"]
"""After ``broken`` the process ends: nobody knows what such an error leaves behind on a GPU."""


def work(plan: StudyPlan, orders: Iterable[str], *, gpus: int) -> None:
    """Run the cells whose names come in, and answer each."""
    with os.fdopen(os.dup(1), "w") as answers:
        for order in orders:
            cell = find_cell(plan.cells, order.strip())
            with said_to(plan.folder.output(cell.name)):
                answer = _attempt(plan, cell, gpus)
            print(answer, file=answers, flush=True)
            if answer == "broken":
                return
            _tidy_up()


def _attempt(plan: StudyPlan, cell: Cell, gpus: int) -> Answer:
    try:
        with terminated_like_interrupted() if gpus > 1 else nullcontext():
            run_cell(plan, cell, gpus=gpus)
    except CellInUse as error:
        print(error)
        return "in-use"
    except Exception as error:
        print(record_failure(plan, cell, error))
        return "failed" if isinstance(error, UserError) else "broken"
    return "done"


def _tidy_up() -> None:
    """Leave the next cell the memory of the last, and none of its compiled networks."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where no GPU was opened


@contextmanager
def said_to(log: Path) -> Iterator[None]:
    """Append to a file what this process says, also what it says beside Python."""
    log.parent.mkdir(parents=True, exist_ok=True)
    streams = (sys.stdout, sys.stderr)
    with log.open("ab") as file:
        before = [os.dup(number) for number in (1, 2)]
        _point(streams, [file.fileno()] * 2)
        try:
            yield
        finally:
            _point(streams, before)
            for handle in before:
                os.close(handle)


def _point(streams: tuple[IO[str], IO[str]], handles: list[int]) -> None:
    for number, (stream, handle) in enumerate(zip(streams, handles, strict=True), start=1):
        stream.flush()
        os.dup2(handle, number)
