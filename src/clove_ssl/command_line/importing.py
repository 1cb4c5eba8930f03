"""Import torch, and all that needs it, quickly, and without pauses later in a training step.

torch's compiler takes longer to import than torch itself, and most runs compile nothing. Yet
torchvision imports it for a question that only some devices ask, and optimizers do when they are
made, to be left alone by it. Both can do without it until it is needed.

Importing makes hundreds of thousands of objects that stay until the end. Looking through them for
garbage, again and again while they are made, takes a seventh of the time of all imports. Later one
such look would stop some step for a fifth of a second, and data workers, which share these objects
with the main process, would each get a copy of all that is looked at.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from clove_ssl.console import Console


@contextmanager
def starting() -> Iterator[None]:
    """Import inside; on a real terminal a line shows that the program is being loaded.

    Only the first of several processes speaks, and none whose output another program reads.
    """
    if "torch" not in sys.modules:  # later its threads have been made, and it asks no more
        let_threads_rest(os.environ)
    speaks = sys.stdout.isatty() and os.environ.get("RANK", "0") == "0"
    with Console(speaks=speaks).working("Starting"), without_pauses(), without_compiler():
        yield


def let_threads_rest(environment: MutableMapping[str, str]) -> None:
    """Let torch's threads sleep soon when they wait for each other, unless the user says how.

    GNU's OpenMP has them look again and again for some milliseconds. Where other programs use the
    cores, that takes the time of the very thread they wait for: steps took two to three times as
    long. A tenth of a millisecond bridges the gaps between the parts of a step as well.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(environment):
        environment["GOMP_SPINCOUNT"] = "10000"


@contextmanager
def without_pauses() -> Iterator[None]:
    """Import inside; what is there at the end is not looked through again before the program ends.

    Where torch is there already nothing changes: it is the process of somebody else.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()
    # At the end all must be released in good order, or libraries complain of what leaked.
    atexit.register(gc.unfreeze)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Import inside: neither torchvision nor optimizers, later on, bring torch's compiler along.

    Where torch is there already nothing changes.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules.update({name: _StandIn(name) for name in ("torch._dynamo", "torch._dynamo.utils")})
    try:
        yield
    finally:
        _take_away_stand_ins()
    if "torch" in sys.modules:
        _leave_optimizers_alone()


def _leave_optimizers_alone() -> None:
    from torch.optim import Optimizer

    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        plain = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if plain is not None:
            # Where torch keeps the function that its compiler leaves alone, once it has asked.
            plain.__dict__.setdefault("__dynamo_disable", plain)


class _StandIn(ModuleType):
    """In the place of the compiler while others are imported; what it is asked for is real."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # as a package has one

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "is_compile_supported":
            return _is_compile_supported
        _take_away_stand_ins()
        return getattr(importlib.import_module(self.__name__), name)


def _take_away_stand_ins() -> None:
    for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
        del sys.modules[name]


def _is_compile_supported(device: str) -> bool:
    """What torchvision wants to know, asked of the compiler when it is known to be needed."""
    found = importlib.import_module("torch._dynamo.utils").is_compile_supported(device)
    return bool(found)
