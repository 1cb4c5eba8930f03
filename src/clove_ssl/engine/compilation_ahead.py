"""Compile the graphs of a run in several processes at once, before its first step.

torch compiles one graph after the other, and waits each time for the few kernels of that
graph, while most cores have nothing to do. So a step is taken once without compiled
code, to see which pieces are called with what. Helpers share these calls out among
them and compile them into torch's folder of compiled code, where the run then finds
them. A helper that fails costs time, nothing else: the run compiles what is missing.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from pickle import PicklingError
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from clove_ssl.engine.compilation import cut, set_up_compiler
from clove_ssl.engine.machine import available_cores
from clove_ssl.engine.precision import Precision
from clove_ssl.engine.repeatability import start_repeatably
from clove_ssl.methods.base import Method, Progress
from clove_ssl.views.batch import ViewBatch

HELPERS = 8
CORES_PER_HELPER = 2  # one traces graphs, one compiles their kernels
_ON_DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG
_HELPER = f"import sys; from {__name__} import compile_share; compile_share(sys.argv[1])"


@dataclass(frozen=True)
class TensorKind:
    """What a graph knows of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    def blank(self, device: torch.device) -> Tensor:
        """A tensor of this kind."""
        empty = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return empty.zero_().requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class PieceCall:
    """A piece, and what it was called with."""

    piece: nn.Module  # without its weights
    inputs: tuple[Any, ...]  # tensors by their kind
    learns: bool

    @property
    def name(self) -> str:
        """Equal for calls that share a graph."""
        kinds = [(tuple(p.shape), p.requires_grad) for p in self.piece.parameters()]
        return repr((self.piece, self.piece.training, kinds, self.inputs, self.learns))

    def run(self, precision: Precision, device: torch.device) -> None:
        """Call the piece with zeros for weights, and go back through it if it learns."""
        inputs = [i.blank(device) if isinstance(i, TensorKind) else i for i in self.inputs]
        piece = self.piece.to_empty(device=device)
        for tensor in (*piece.parameters(), *piece.buffers()):
            tensor.data.zero_()
        piece.compile(dynamic=False)
        with torch.set_grad_enabled(self.learns), precision.autocast():
            outputs = piece(*inputs)
        results = [outputs] if isinstance(outputs, Tensor) else outputs
        learned = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
        if learned:
            torch.autograd.backward(learned, [torch.zeros_like(result) for result in learned])


@dataclass(frozen=True)
class Share:
    """What one helper compiles, and how."""

    calls: Sequence[PieceCall]
    precision: Precision
    device: torch.device
    deterministic: bool
    activation_memory: float


@dataclass(frozen=True)
class Outcome:
    """What compiling ahead came to."""

    graphs: int
    helpers: int
    failed: int
    seconds: float


def compile_ahead(
    method: Method,
    batch: ViewBatch,
    precision: Precision,
    *,
    deterministic: bool = False,
    activation_memory: float = 1.0,
) -> Outcome | None:
    """Compile what a step of ``method`` needs; nothing where that was done, or cannot be shared.

    Args:
        method: On its device; it is not changed.
        batch: Views like those of the run.
        precision: The run's.
        deterministic: Whether the run repeats itself bit for bit.
        activation_memory: See :func:`~clove_ssl.engine.compilation.compile_networks`.
    """
    start = time.perf_counter()
    helpers = min(HELPERS, available_cores() // CORES_PER_HELPER)
    if helpers < 2:
        return None
    calls = record_calls(method, batch, precision)
    done = _mark(calls, precision.name, deterministic, activation_memory)
    if done.exists():
        return None
    device = batch.views[0].pixels.device
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the helpers need room
    shares = [
        Share(dealt, precision, device, deterministic, activation_memory)
        for dealt in _deal(calls, helpers)
    ]
    try:
        failed = run_helpers(shares)
        if not failed:
            done.parent.mkdir(parents=True, exist_ok=True)
            done.touch()
    except (OSError, RuntimeError, AttributeError, PicklingError):
        failed = len(shares)  # there is no room for files, or a piece that no file can hold
    return Outcome(len(calls), len(shares), failed, time.perf_counter() - start)


def record_calls(method: Method, batch: ViewBatch, precision: Precision) -> list[PieceCall]:
    """Every kind of call of a piece in one step, made with a copy of ``method``."""
    stand_in = copy.deepcopy(method)
    calls: dict[str, PieceCall] = {}

    def note(piece: nn.Module, inputs: tuple[Any, ...]) -> None:
        call = PieceCall(piece, tuple(map(_kind, inputs)), torch.is_grad_enabled())
        calls.setdefault(call.name, call)

    hooks = [piece.register_forward_pre_hook(note) for piece in cut(stand_in.networks())]
    device = batch.views[0].pixels.device
    on_gpu = [device] if device.type == "cuda" else []
    nothing_kept = saved_tensors_hooks(lambda _: None, _no_backward_pass)
    with torch.random.fork_rng(on_gpu), nothing_kept, precision.autocast():
        stand_in(batch, Progress(0, 1))
    for hook in hooks:
        hook.remove()
    stand_in.to("meta")
    return list(calls.values())


def _no_backward_pass(_: object) -> Tensor:
    raise AssertionError("a recorded step has no backward pass")


def _kind(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return TensorKind(tuple(value.shape), value.stride(), value.dtype, value.requires_grad)


def _mark(calls: Iterable[PieceCall], *settings: object) -> Path:
    """The file that says that all of this lies in the folder of compiled code."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    names = sorted(call.name for call in calls)
    facts = repr((names, settings, torch.__version__, _gpu_name()))
    return Path(cache_dir(), "clove_ssl", hashlib.sha256(facts.encode()).hexdigest())


def _gpu_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _deal(calls: list[PieceCall], hands: int) -> list[list[PieceCall]]:
    """Calls in turns, those with a backward pass first: they take longest."""
    longest_first = sorted(calls, key=lambda call: not call.learns)
    dealt = [longest_first[hand::hands] for hand in range(hands)]
    return [calls for calls in dealt if calls]


def run_helpers(shares: Sequence[Share]) -> int:
    """Let each share be compiled by a process of its own; the number of those that failed."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, available_cores() // len(shares))),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),  # code compiled for others is not found
    }
    nowhere = subprocess.DEVNULL
    with TemporaryDirectory() as folder, ExitStack() as started:
        processes = []
        for number, share in enumerate(shares):
            command = [sys.executable, "-c", _HELPER, _written(share, Path(folder, str(number)))]
            process = subprocess.Popen(command, env=environment, stdout=nowhere, stderr=nowhere)
            started.callback(process.kill)
            processes.append(process)
        return sum(process.wait() != 0 for process in processes)


def _written(share: Share, path: Path) -> str:
    torch.save(share, path)
    return str(path)


def _end_with_parent() -> None:
    """A killed run must not leave helpers behind that hold the GPU; only Linux knows how."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_ON_DEATH_OF_PARENT, signal.SIGKILL)


def compile_share(path: str) -> None:
    """What a helper does."""
    _end_with_parent()
    share: Share = torch.load(path, weights_only=False)  # of the process that started this one
    start_repeatably(0, share.device, deterministic=share.deterministic)
    share.precision.prepare()
    set_up_compiler(share.activation_memory)
    for call in share.calls:
        call.run(share.precision, share.device)
