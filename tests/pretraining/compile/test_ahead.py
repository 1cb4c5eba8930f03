"""Graphs compiled by helpers before the first step: the ones the run asks for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from builders.batches.compiling import method_and_batch
from builders.runs.method_runs import TRAINED
from torch import Tensor, nn
from torch._dynamo.utils import counters

from clove_ssl.methods.base import Progress
from clove_ssl.methods.slotcon import layout
from clove_ssl.methods.slotcon.method import SlotSearch
from clove_ssl.pretraining.compile import ahead as compilation_ahead
from clove_ssl.pretraining.compile import calls as compilation_calls
from clove_ssl.pretraining.compile.calls import PieceCall, record_calls
from clove_ssl.pretraining.compile.helpers import CallPile, Surroundings, load_calls
from clove_ssl.pretraining.compile.method import compile_method, compile_piece, compile_pieces
from clove_ssl.training.numerics import choose_precision

CPU = torch.device("cpu")
FP32 = choose_precision("auto", CPU)

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("name", TRAINED)
def test_calls_are_recorded_without_a_trace_in_the_method(name: str, tmp_path: Path) -> None:
    method, batch = method_and_batch(name, tmp_path)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    random = torch.get_rng_state()
    assert record_calls(method, batch, FP32)
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("name", ["clove", "moco", "slotcon", "vicregl"])
def test_every_graph_of_a_step_has_a_call(name: str, tmp_path: Path) -> None:
    method, batch = method_and_batch(name, tmp_path)
    compile_method(method, backend="eager")
    calls = record_calls(method, batch, FP32)
    method(batch, Progress(0, 1)).loss.backward()
    assert len(calls) == counters["stats"]["unique_graphs"] > 2


def test_a_graph_for_any_length_serves_what_the_run_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        compilation_calls, "compile_piece", partial(compile_piece, backend="aot_eager")
    )
    monkeypatch.setattr(layout, "_ROOM_STEP", 1)
    method, batch = method_and_batch("slotcon", tmp_path)
    calls = [c for c in record_calls(method, batch, FP32) if isinstance(c.piece, SlotSearch)]
    load_calls(calls, Surroundings(FP32, CPU))
    assert counters["stats"]["unique_graphs"] == 1
    compile_pieces([method.search], backend="aot_eager")
    for _ in range(3):
        method(batch, Progress(0, 1)).loss.backward()
        with torch.no_grad():
            method.encoder.prototypes.normal_()  # other slots will be in common, of both directions
    assert counters["stats"]["unique_graphs"] == 1


HELPED_RUN = """
import torch
from torch import nn
from torch._dynamo.utils import counters
from clove_ssl.pretraining.compile.calls import PieceCall, TensorKind
from clove_ssl.pretraining.compile.helpers import Surroundings, run_helpers
from clove_ssl.training.numerics import choose_precision

cpu = torch.device("cpu")
fp32 = choose_precision("auto", cpu)
fp32.prepare()  # as a run does; code compiled with other settings is not found
kind = TensorKind((2, 4), (4, 1), torch.float32, requires_grad=True)
good = PieceCall(nn.Linear(4, 4, bias=False), (kind,), learns=True)  # needs no C++ compiler
bad = PieceCall(nn.Linear(5, 5), (kind,), learns=True)
failed = run_helpers([good, bad], Surroundings(fp32, cpu), 1)
loaded = counters["stats"]["unique_graphs"]
good.run(fp32, cpu)
found, missed = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
graphs = counters["stats"]["unique_graphs"]
print(failed, found, missed, loaded, graphs)
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
def test_a_run_finds_what_helpers_compiled_and_does_without_those_that_fail(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HELPED_RUN]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # Forward and backward were found, and loaded once for the run and all like it.
    assert answer.stdout.split() == ["1", "2", "0", "1", "1"]


def test_what_was_compiled_once_is_only_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    dealt: list[int] = []
    loaded: list[int] = []

    def note(calls: list[PieceCall], around: Surroundings, helpers: int) -> int:
        dealt.append(len(calls))
        return 0

    monkeypatch.setattr(compilation_ahead, "available_cores", lambda: 16)
    monkeypatch.setattr(compilation_ahead, "run_helpers", note)
    monkeypatch.setattr(
        compilation_ahead, "load_calls", lambda calls, around: loaded.append(len(calls))
    )
    method, batch = method_and_batch("clove", tmp_path)
    first = compilation_ahead.compile_ahead(method, batch, FP32)
    assert first is not None
    assert dealt == [first.graphs]
    assert loaded == []  # that is done beside the helpers
    assert compilation_ahead.compile_ahead(method, batch, FP32) is None
    assert loaded == [first.graphs]
    assert compilation_ahead.compile_ahead(method, batch, FP32, activation_memory=0.5) is not None


def test_few_cores_are_not_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compilation_ahead, "available_cores", lambda: 3)
    method, batch = method_and_batch("clove", tmp_path)
    assert compilation_ahead.compile_ahead(method, batch, FP32) is None


def test_a_piece_that_cannot_travel_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Local(nn.Sequential):
        """No other process could import this."""

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setattr(compilation_ahead, "available_cores", lambda: 4)
    call = PieceCall(Local(nn.Linear(4, 4)), (), learns=True)
    monkeypatch.setattr(compilation_ahead, "record_calls", lambda *_: [call])
    method, batch = method_and_batch("clove", tmp_path)
    outcome = compilation_ahead.compile_ahead(method, batch, FP32)
    assert outcome is not None
    assert outcome.failed == outcome.helpers == 1


class KernelChoice(nn.Linear):
    """Notes how cuDNN chooses kernels when it is called."""

    seen: ClassVar[list[tuple[bool, bool]]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic))
        return super().forward(rows)


def test_no_kernel_is_chosen_beside_the_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "benchmark", True)
    call = PieceCall.of(KernelChoice(4, 4), torch.zeros(2, 4), learns=False)
    monkeypatch.setattr(nn.Module, "compile", lambda *_, **__: None)
    call.run(FP32, CPU)
    assert KernelChoice.seen == [(False, True)]
    assert (cudnn.benchmark, cudnn.deterministic) == (True, False)


def test_a_call_is_taken_once_and_told_when_it_is_done(tmp_path: Path) -> None:
    piles = [CallPile(tmp_path), CallPile(tmp_path)]  # of two processes
    for number in (0, 1):
        piles[0].put(number, PieceCall(nn.Linear(number + 1, 1), (), learns=True))
    taken = [pile.take() for pile in piles]
    assert [(number, call.piece.in_features) for number, call in filter(None, taken)] == [
        (0, 1),
        (1, 2),
    ]
    assert piles[0].take() is None
    assert piles[0].finished() == set()
    piles[1].finish(1)
    assert piles[0].finished() == {1}
