"""Processes that compile pieces, and a run that loads what they have compiled.

All calls lie in a folder, one file each, whose ending says how far it is. Every helper takes the
next one as soon as it has done its last, so none is idle before the end. Loading takes
a second for each graph, so the run does it while the helpers go on; graphs belong to
the code of a piece, not to its weights, so what was loaded serves all pieces alike.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from clove_ssl.cores import available_cores
from clove_ssl.pretraining.compile.calls import PieceCall
from clove_ssl.pretraining.compile.method import set_up_compiler
from clove_ssl.training.numerics import Precision, start_repeatably

_ON_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG
_HELPER = f"import sys; from {__name__} import help_out; help_out(sys.argv[1])"
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Surroundings:
    """What compiled code depends on besides the call."""

    precision: Precision
    device: torch.device
    deterministic: bool = False
    activation_memory: float = 1.0
    goes_back_twice: bool = False


class CallPile:
    """Calls in a folder: each is taken by one process, which says when it is done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, number: int, call: PieceCall) -> None:
        """Add a call; low numbers are taken first."""
        torch.save(call, self._place(number, "waiting"))

    def take(self) -> tuple[int, PieceCall] | None:
        """The next call and its number, or nothing when all are taken."""
        for path in sorted(self._folder.glob("*.waiting")):
            number = int(path.stem)
            taken = self._place(number, "taken")
            # To rename is to take: of several processes that try, one succeeds.
            with suppress(FileNotFoundError):  # another process was faster
                path.rename(taken)
                return number, torch.load(taken, weights_only=False)  # the run wrote it
        return None

    def finish(self, number: int) -> None:
        """Say that a call is compiled."""
        self._place(number, "taken").rename(self._place(number, "done"))

    def finished(self) -> set[int]:
        """The numbers of all that are compiled."""
        return {int(path.stem) for path in self._folder.glob("*.done")}

    def _place(self, number: int, state: str) -> Path:
        return self._folder / f"{number:04d}.{state}"


def run_helpers(calls: Sequence[PieceCall], around: Surroundings, helpers: int) -> int:
    """Have all calls compiled by processes and load them here; the number of those that failed."""
    with TemporaryDirectory() as folder, ExitStack() as started:
        pile = CallPile(Path(folder))
        torch.save(around, Path(folder, "surroundings"))
        for number, call in enumerate(calls):
            pile.put(number, call)
        processes = []
        for _ in range(helpers):
            process = _start_helper(folder, available_cores() // helpers)
            # Whatever ends this, Ctrl-C included, no helper goes on holding memory of the GPU.
            started.callback(process.kill)
            processes.append(process)
        _load_finished(pile, calls, around, processes)
        return sum(process.wait() != 0 for process in processes)


def _start_helper(folder: str, cores: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        # By default each helper would start as many as there are cores, eight times over.
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, cores)),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),  # code compiled for others is not found
    }
    # A new interpreter, since a process that has used a GPU cannot be forked.
    command = [sys.executable, "-c", _HELPER, folder]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=nowhere, stderr=nowhere)


def _load_finished(
    pile: CallPile,
    calls: Sequence[PieceCall],
    around: Surroundings,
    processes: Sequence[subprocess.Popen[bytes]],
) -> None:
    """Run each call as soon as it is compiled, until all are or nobody is left to compile."""
    left = set(range(len(calls)))
    while left:
        # Asked in this order: a helper may finish its last call and end in between.
        helped = any(process.poll() is None for process in processes)
        ready = left & pile.finished()
        load_calls([calls[number] for number in sorted(ready)], around)
        left -= ready
        if not ready:
            if not helped:
                return
            time.sleep(_POLL_SECONDS)


def load_calls(calls: Sequence[PieceCall], around: Surroundings) -> None:
    """Run calls, which compiles what is not compiled yet."""
    set_up_compiler(around.activation_memory, goes_back_twice=around.goes_back_twice)
    for call in calls:
        call.run(around.precision, around.device)


def help_out(folder: str) -> None:
    """What a helper does."""
    end_with_parent()
    around: Surroundings = torch.load(Path(folder, "surroundings"), weights_only=False)
    # Determinism changes which kernels a graph may have, so it is part of what it is found by.
    start_repeatably(0, around.device, deterministic=around.deterministic)
    around.precision.prepare()
    pile = CallPile(Path(folder))
    while taken := pile.take():
        number, call = taken
        load_calls([call], around)
        pile.finish(number)


def end_with_parent() -> None:
    """A killed run must not leave helpers behind that hold the GPU; only Linux knows how."""
    with suppress(OSError, AttributeError):
        # A callback of the parent would not do: SIGKILL and the out-of-memory killer run none.
        ctypes.CDLL(None).prctl(_ON_DEATH_OF_PARENT, signal.SIGKILL)
