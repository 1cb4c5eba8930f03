"""Who may write a run directory, and who speaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from clove_ssl.console import Console
from clove_ssl.engine.distributed import Process
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory


@contextmanager
def owned(run: RunDirectory, process: Process) -> Iterator[Console]:
    """Only the first process locks and writes the run directory."""
    with (
        directory.locked(run) if process.is_first else nullcontext(),
        Console(speaks=process.is_first, log=run.log if process.is_first else None) as console,
    ):
        process.wait()
        yield console
