"""Commands in forked process groups, whose members can be found and hit one by one."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from chaos.moments import Moment

from clove_ssl import cli

PATIENCE = 240.0
"""Seconds after which a command counts as hanging; the machine may be busy."""


def nothing() -> None:
    """What most commands need before they begin."""


class Command:
    """A ``clove`` command in a process group of its own."""

    def __init__(
        self,
        arguments: list[str],
        said: Path,
        *,
        before: Callable[[], None] = nothing,
        environment: Mapping[str, str] | None = None,
        moment: Moment | None = None,
    ) -> None:
        self.said = said
        self.moment = moment
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments, before, environment or {})
        os.setpgid(self.pid, self.pid)

    def _run(
        self, arguments: list[str], before: Callable[[], None], environment: Mapping[str, str]
    ) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            log = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
            os.environ.update(environment)
            torch.set_num_threads(1)
            before()
            if self.moment is not None:
                self.moment.install()
            code = cli.main(arguments)
            if self.moment is not None:
                self.moment.close_in_child()
        except SystemExit as error:  # of the reader of options
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def is_running(self) -> bool:
        """Whether the main process has not ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait_for_moment(self) -> bool:
        """Wait until the moment has come; whether it did, before the command ended."""
        assert self.moment is not None
        while self.is_running():
            if self.moment.wait(0.02):
                return True
        return False

    def wait(self, seconds: float = PATIENCE) -> bool:
        """Wait for the end; whether it came."""
        until = time.monotonic() + seconds
        while self.is_running():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def hit(self, number: int = signal.SIGKILL) -> bool:
        """Send a signal to the main process; whether there was one."""
        if not self.is_running():
            return False
        os.kill(self.pid, number)
        return True

    def children(self) -> list[int]:
        """The other members of the group."""
        return [pid for pid in group_members(self.pid) if pid != self.pid]

    def end_all(self) -> None:
        """Leave nobody behind."""
        for pid in group_members(self.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.wait(10)


def group_members(group: int) -> list[int]:
    """Processes of a group that are no zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(entry))
    return found
