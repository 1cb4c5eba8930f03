"""One cell of a study: started, or continued where it was interrupted."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal

import torch

from clove_ssl.atomic import write_text
from clove_ssl.config import files
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.errors import UserError
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.finetuning.run import FinetuneResult
from clove_ssl.pretraining import run as pretraining
from clove_ssl.pretraining.run import PretrainResult
from clove_ssl.probes.command import open_suite, probe_backbones
from clove_ssl.probes.suite import ProbeSuite
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.study.cells import Cell, CellInUse, find_cell, state_of
from clove_ssl.study.plan import StudyPlan, time_steps
from clove_ssl.training.signals import terminated_like_interrupted
from clove_ssl.whole_runs import resume


def run_cell(plan: StudyPlan, cell: Cell, *, gpus: int = 1) -> None:
    """Do the work of a cell, unless it is done; a stop signal raises ``KeyboardInterrupt``."""
    # A run in this process looks after signals itself; torchrun has to be ended by us.
    heeding = terminated_like_interrupted() if gpus > 1 else nullcontext()
    with heeding, plan.folder.working_on(cell.name):
        if state_of(cell, plan.folder) == "done":
            return
        if missing := plan.missing(cell):
            raise UserError(f"{cell.name} needs {', '.join(missing)}, which is not done yet.")
        plan.keep(cell)
        plan.folder.failure(cell.name).unlink(missing_ok=True)
        _do(plan, cell, gpus)


def record_failure(plan: StudyPlan, cell: Cell, error: Exception) -> str:
    """Write down why a cell failed; gives what to tell of it."""
    return write_failure(plan.folder.failure(cell.name), error)


def write_failure(path: Path, error: Exception) -> str:
    """Write down what went wrong, with a traceback unless it is told for users; gives its text."""
    is_told = isinstance(error, UserError)
    told = str(error) if is_told else traceback.format_exc()
    with suppress(OSError):  # a full disk may be why it failed; the other cells go on
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, told.rstrip() + "\n")
    return str(error) if is_told else f"{type(error).__name__}: {error}"


def _do(plan: StudyPlan, cell: Cell, gpus: int) -> None:
    config, run = plan.config_of(cell), plan.folder.run(cell.name)
    if isinstance(config, ProbeConfig):
        _probe(config, run)
    elif cell.kind == "timing":
        assert isinstance(config, PretrainConfig)
        time_steps(run, config, plan.config.budget)
    elif gpus > 1:
        _run_together(config, run, gpus)
    else:
        start_or_resume(config, run)


def start_or_resume(config: PretrainConfig | FinetuneConfig, run: RunDirectory) -> None:
    """Train to the end; whoever asks it to stop before raises ``KeyboardInterrupt``."""
    if _is_begun(run):
        result: PretrainResult | FinetuneResult = resume(run.path, conclude=False)
    elif isinstance(config, FinetuneConfig):
        result = finetuning.finetune(config)
    else:
        result = pretraining.pretrain(config)
    if not result.finished:
        raise KeyboardInterrupt


def _is_begun(run: RunDirectory) -> bool:
    """Whether there is a run to continue; what died before its config was written is removed."""
    if run.path.exists() and not run.config.is_file():
        shutil.rmtree(run.path)
    return run.config.is_file()


def _probe(config: ProbeConfig, run: RunDirectory) -> None:
    """Measure one backbone and write its scores as a run writes its scores."""
    suite = _kept_suite(replace(config, backbones=(), stages=()))
    (scores,) = probe_backbones(config, suite).values()
    run.path.mkdir(parents=True, exist_ok=True)
    files.save(config, run.config)
    content = {
        name: {"value": score.value, "interval": score.interval, "is_share": score.is_share}
        for name, score in scores.items()
    }
    write_text(run.scores, json.dumps(content, indent=1) + "\n")


@lru_cache(maxsize=4)
def _kept_suite(config: ProbeConfig) -> ProbeSuite:
    """The images of a probe stay in memory for the next backbone."""
    return open_suite(config)


def _run_together(config: PretrainConfig | FinetuneConfig, run: RunDirectory, gpus: int) -> None:
    """The same on several GPUs, with one process each."""
    if _is_begun(run):
        arguments = ["resume", str(run.path)]
    else:
        file = run.path.with_name(f"{run.path.name}.yaml")  # a label may have dots of its own
        file.parent.mkdir(parents=True, exist_ok=True)
        files.save(config, file)
        verb = "finetune" if isinstance(config, FinetuneConfig) else "pretrain"
        arguments = [verb, "--config", str(file), "--out", str(run.path)]
    code = call(torchrun_command(gpus, arguments))
    if code:
        raise UserError(
            f"torchrun ended with code {code}; what it said is above. Go on with the same command."
        )


def torchrun_command(gpus: int, arguments: Sequence[str]) -> list[str]:
    """A ``clove`` command on several GPUs of this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, "--nproc-per-node", str(gpus), "-m", "clove_ssl", *arguments]


def call(command: Sequence[str]) -> int:
    """Run a command to its end, or end it with this process."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


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
            tidy_up()


def _attempt(plan: StudyPlan, cell: Cell, gpus: int) -> Answer:
    try:
        run_cell(plan, cell, gpus=gpus)
    except CellInUse as error:
        print(error)
        return "in-use"
    except Exception as error:
        print(record_failure(plan, cell, error))
        return "failed" if isinstance(error, UserError) else "broken"
    return "done"


def tidy_up() -> None:
    """Leave the next cell the memory of the last, and none of its compiled networks."""
    if "torch._dynamo" in sys.modules:  # asking for it would import the compiler
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
