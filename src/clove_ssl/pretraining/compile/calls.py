"""Which pieces a step calls, with what: enough to compile each of them anywhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map, tree_map_only

from clove_ssl.methods.base import Method, Progress
from clove_ssl.methods.compiled import Compilable, has_any_length, mark_any_length
from clove_ssl.pretraining.compile.method import compile_piece, pieces_of
from clove_ssl.training.numerics import Precision, without_trials
from clove_ssl.views.batch import ViewBatch

EXAMPLE_LENGTH = 1024  # where any will do; code is made for lengths like it


@dataclass(frozen=True)
class TensorKind:
    """What a graph knows of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    any_length: bool = False  # of the first axis, whose length in ``shape`` is an example

    @classmethod
    def of(cls, tensor: Tensor) -> TensorKind:
        """The kind of a tensor; equal for tensors that share a graph."""
        shape, free = tuple(tensor.shape), has_any_length(tensor)
        if free:
            # Lengths of 0 and 1 are special to the compiler, which would make code for just those.
            shape = (EXAMPLE_LENGTH, *shape[1:])
        return cls(shape, tensor.stride(), tensor.dtype, tensor.requires_grad, free)

    def blank(self, device: torch.device) -> Tensor:
        """A tensor of this kind."""
        empty = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        # Zeros, not what lies there: a NaN among them could send code of a piece another way.
        tensor = empty.zero_().requires_grad_(self.requires_grad)
        return mark_any_length(tensor) if self.any_length else tensor


@dataclass(frozen=True)
class PieceCall:
    """A piece, and what it was called with."""

    piece: nn.Module  # without its weights
    inputs: tuple[Any, ...]  # tensors by their kind, in tuples or not
    learns: bool

    @classmethod
    def of(cls, piece: nn.Module, *inputs: Any, learns: bool) -> PieceCall:
        """The call of a piece, which may go on to be used: its weights are not needed."""
        return cls(copy.deepcopy(piece).to("meta"), tree_map(_kind, inputs), learns)

    @property
    def name(self) -> str:
        """Equal for calls that share a graph."""
        kinds = [(tuple(p.shape), p.requires_grad) for p in self.piece.parameters()]
        # The text of a module has its layers with their options, in order, which is what graphs
        # depend on.
        return repr((self.piece, self.piece.training, kinds, self.inputs, self.learns))

    def run(self, precision: Precision, device: torch.device) -> None:
        """Call the piece with zeros for weights, and go back through it if it learns.

        Which kernel is fastest for a convolution is left to the first step: nothing can be timed
        beside the helpers.
        """
        with without_trials(remembered_apart=True):
            self._run(precision, device)

    def _run(self, precision: Precision, device: torch.device) -> None:
        inputs = tree_map_only(TensorKind, lambda kind: kind.blank(device), self.inputs)
        piece = self.piece.to_empty(device=device)
        # On ``meta`` there are no values, so the memory that a piece gets here holds anything.
        for tensor in (*piece.parameters(), *piece.buffers()):
            tensor.data.zero_()
        compile_piece(piece)
        with torch.set_grad_enabled(self.learns), precision.autocast():
            outputs = piece(*inputs)
        results = [outputs] if isinstance(outputs, Tensor) else outputs
        # The backward graph is compiled when it first runs, so it has to run here.
        learned = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
        if learned:
            torch.autograd.backward(learned, [torch.zeros_like(result) for result in learned])
        piece.to("meta")  # the next call needs the memory


def record_calls(method: Method, batch: ViewBatch, precision: Precision) -> list[PieceCall]:
    """Every kind of call of a piece in one step, made with a copy of ``method``."""
    stand_in = copy.deepcopy(method)  # a step moves statistics and the teacher
    assert isinstance(stand_in, Compilable)
    calls: dict[str, PieceCall] = {}

    def note(piece: nn.Module, inputs: tuple[Any, ...]) -> None:
        # Student and teacher share their code, but a pass without gradients has a graph of its own.
        call = PieceCall(piece, tree_map(_kind, inputs), torch.is_grad_enabled())
        calls.setdefault(call.name, call)  # blocks of equal shape are compiled once

    hooks = [piece.register_forward_pre_hook(note) for piece in pieces_of(stand_in)]
    device = batch.views[0].pixels.device
    on_gpu = [device] if device.type == "cuda" else []
    # No backward pass follows. What it would need is dropped at once, or this step would take as
    # much memory beside the run's as a step of the run.
    nothing_kept = saved_tensors_hooks(lambda _: None, _no_backward_pass)
    untried = without_trials(remembered_apart=True)
    # The generators stay where they are: a run must not depend on whether it was compiled ahead.
    with torch.random.fork_rng(on_gpu), nothing_kept, untried, precision.autocast():
        stand_in(batch, Progress(0, 1))
    for hook in hooks:
        hook.remove()
    stand_in.to("meta")  # calls keep its pieces, but not their memory
    return list(calls.values())


def _no_backward_pass(_: object) -> Tensor:
    raise AssertionError("a recorded step has no backward pass")


def _kind(value: Any) -> Any:
    return TensorKind.of(value) if isinstance(value, Tensor) else value
