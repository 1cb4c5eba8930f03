"""The folder of a study: what lies where, and who works on which cell.

A cell is one piece of work with a folder of its own, named by what is done: ``timing/clove``,
``pretrain/clove-s0``, ``probe/dense/clove-s0``, ``finetune/voc-c4/clove-s0-f1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from clove_ssl.errors import UserError
from clove_ssl.runs.directory import RunDirectory, held


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
