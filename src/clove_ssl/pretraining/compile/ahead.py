"""Compile the graphs of a run in several processes at once, before its first step.

torch compiles one graph after the other, and waits each time for the few kernels of that
graph, while most cores have nothing to do. So a step is taken once without compiled
code, to see which pieces are called with what. Helpers share these calls out among
them and compile them into torch's folder of compiled code, where the run then finds
them and loads them before its first step. A helper that fails costs time, nothing else:
the run compiles what is missing.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import PicklingError

import torch

from clove_ssl.console import Console
from clove_ssl.cores import available_cores
from clove_ssl.methods.base import Method
from clove_ssl.methods.compiled import Compilable
from clove_ssl.pretraining.compile.calls import PieceCall, record_calls
from clove_ssl.pretraining.compile.helpers import Surroundings, load_calls, run_helpers
from clove_ssl.training.numerics import Precision
from clove_ssl.views.batch import ViewBatch

HELPERS = 8
CORES_PER_HELPER = 2  # one traces graphs, one compiles their kernels


@dataclass(frozen=True)
class Outcome:
    """What compiling ahead came to."""

    graphs: int
    helpers: int
    failed: int

    def announce(self, seconds: float, console: Console) -> None:
        """Say how much was compiled, and whether a helper failed."""
        console.say(f"Compiled {self.graphs} graphs by {self.helpers} processes in {seconds:.0f} s")
        if self.failed:
            console.warn(
                f"{self.failed} of the processes failed; the first step compiles their graphs"
            )


def compile_ahead(
    method: Method,
    batch: ViewBatch,
    precision: Precision,
    *,
    deterministic: bool = False,
    activation_memory: float = 1.0,
) -> Outcome | None:
    """Compile and load what a step of ``method`` needs, where there are cores to share that.

    Args:
        method: On its device; it is not changed. Nothing is done for one that is not compiled.
        batch: Views like those of the run.
        precision: The run's.
        deterministic: Whether the run repeats itself bit for bit.
        activation_memory: See :func:`~clove_ssl.pretraining.compile.method.compile_pieces`.
    """
    # One helper would do what the run does anyway, with a start of its own on top.
    if _most_helpers() < 2 or not isinstance(method, Compilable):
        return None
    device = batch.views[0].pixels.device
    around = Surroundings(
        precision, device, deterministic, activation_memory, method.goes_back_twice
    )
    return compile_calls(record_calls(method, batch, precision), around)


def compile_calls(calls: Iterable[PieceCall], around: Surroundings) -> Outcome | None:
    """Compile and load these calls; nothing to tell where only the second had to be done."""
    if _most_helpers() < 2:
        return None
    calls = sorted(calls, key=_hardest_first)
    # A later run of the same shapes finds all in torch's folder; helpers would only look it up
    # again, after a start that takes longer than that.
    done, outcome = _mark(calls, around), None
    if done.exists():
        load_calls(calls, around)
    else:
        outcome = _share_out(calls, around, done)
    gc.collect()  # or Python would stop some later step to look through all that was loaded
    return outcome


def _share_out(calls: Sequence[PieceCall], around: Surroundings, done: Path) -> Outcome:
    """Have helpers compile calls, and say in the file ``done`` if all of them could."""
    helpers = min(_most_helpers(), len(calls))
    if around.device.type == "cuda":
        torch.cuda.empty_cache()  # the helpers need room
    try:
        failed = run_helpers(calls, around, helpers)
        if not failed:
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
    # Never a reason to end a run: whatever is missing is compiled in its first step.
    except (OSError, RuntimeError, AttributeError, PicklingError):
        failed = helpers  # there is no room for files, or a piece that no file can hold
    return Outcome(len(calls), helpers, failed)


def _hardest_first(call: PieceCall) -> tuple[bool, int]:
    """A backward pass takes longest, and the more layers the longer.

    Begun last, the longest would keep one helper busy when all others have ended.
    """
    return not call.learns, -sum(1 for _ in call.piece.modules())


def _most_helpers() -> int:
    return min(HELPERS, available_cores() // CORES_PER_HELPER)


def _mark(calls: Iterable[PieceCall], around: Surroundings) -> Path:
    """The file that says that all of this lies in the folder of compiled code."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    names = sorted(call.name for call in calls)
    # All that changes the code of a graph, but nothing of the run: other data must find it again.
    settings = (around.precision.name, around.deterministic, around.activation_memory)
    facts = repr((names, settings, around.goes_back_twice, torch.__version__, _gpu_name()))
    return Path(cache_dir(), "clove_ssl", hashlib.sha256(facts.encode()).hexdigest())


def _gpu_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
