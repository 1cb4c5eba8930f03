"""Compile the networks of a method and what comes behind them, piece by piece.

A backbone is compiled in pieces, everything around it head by head. A piece
gets one graph per shape of its input, so a run has one per view size, and pieces of
equal shape share theirs. Processes that share a cache folder compile once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from clove_ssl.backbones.build import Backbone
from clove_ssl.methods.base import Method
from clove_ssl.methods.compiled import Compilable

GRAPHS = 512  # of all pieces together; behind its default limit torch would run without them


def compile_pieces(
    pieces: Iterable[nn.Module],
    backend: str = "inductor",
    *,
    activation_memory: float = 1.0,
    goes_back_twice: bool = False,
) -> None:
    """Compile pieces, which happens when they first run.

    Args:
        pieces: What to compile, each on its own.
        backend: Who makes the code.
        activation_memory: Share of the activations that is kept for the backward pass; the
            compiler reads it for every graph it makes from now on.
        goes_back_twice: Whether a backward pass may leave what it needs for another one.
    """
    set_up_compiler(activation_memory, goes_back_twice=goes_back_twice)
    for piece in pieces:
        compile_piece(piece, backend)


def compile_piece(piece: nn.Module, backend: str = "inductor") -> None:
    """Compile one piece, with a graph for every shape of its input.

    torch 2.11 does not compile modules of its own, such as ``nn.Sequential``, unless called by
    other code.
    """
    if type(piece).__module__.startswith("torch."):
        call = torch.compile(_call, dynamic=False, backend=backend)
        piece._compiled_call_impl = partial(call, piece)  # where ``compile`` puts its own
    else:
        # Left to itself, torch makes code for any size when it meets a second one; a run has few.
        piece.compile(dynamic=False, backend=backend)


def _call(piece: nn.Module, *inputs: Any) -> Any:
    return piece._call_impl(*inputs)  # type: ignore[no-untyped-call]


def compile_method(
    method: Method, backend: str = "inductor", *, activation_memory: float = 1.0
) -> None:
    """Compile what a method says can be compiled, if anything; see :func:`compile_pieces`."""
    if isinstance(method, Compilable):
        method.before_compilation()
        compile_pieces(
            pieces_of(method),
            backend,
            activation_memory=activation_memory,
            goes_back_twice=method.goes_back_twice,
        )


def pieces_of(method: Compilable) -> list[nn.Module]:
    """All that is compiled of a method."""
    return [*cut(method.encoders()), *method.fixed_shape_parts()]


def set_up_compiler(activation_memory: float, *, goes_back_twice: bool = False) -> None:
    """Room for all graphs, what they may keep, and which of them are found again in a later run."""
    # Settings of torch, and so of the whole process; there are no public names for them. Imported
    # here: that takes seconds, and most runs compile nothing.
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    torch._functorch.config.activation_memory_budget = activation_memory
    if goes_back_twice:  # or the first pass would write over what it has been given
        torch._functorch.config.donated_buffer = False
    # Batch norm by view has a backward pass of its own, which is part of what graphs are found by.
    torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True
    if hasattr(torch._inductor.config, "deterministic"):
        # Kernels are chosen by timing them, and the choice may differ from start to start.
        torch._inductor.config.deterministic = torch.are_deterministic_algorithms_enabled()
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
    torch._dynamo.config.accumulated_recompile_limit = max(
        GRAPHS, torch._dynamo.config.accumulated_recompile_limit
    )


def cut(networks: Iterable[nn.Module]) -> list[nn.Module]:
    """The pieces of networks that are compiled each on its own; the networks run in them."""
    return [piece for network in networks for piece in _pieces(network)]


def _pieces(module: nn.Module) -> list[nn.Module]:
    # Before its children: a backbone says itself where its graphs are cut
    # (``backbones/pieces.py``).
    if isinstance(module, Backbone):
        return module.cut()
    # Networks around a backbone and lists of heads are entered: what their own forward passes do
    # between the pieces stays Python.
    if isinstance(module, nn.ModuleList | nn.ModuleDict) or _holds_backbone(module):
        return cut(module.children())
    return [module] if any(True for _ in module.parameters()) else []


def _holds_backbone(module: nn.Module) -> bool:
    return any(isinstance(inner, Backbone) for inner in module.modules())
