"""Imports without pauses: nothing is looked through meanwhile, nor until the end."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from clove_ssl.command_line import importing
from clove_ssl.command_line.importing import without_pauses


@pytest.fixture
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody has imported torch so far."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("a_new_process")
def test_what_was_imported_is_set_aside() -> None:
    with without_pauses():
        assert not gc.isenabled()
        made: list[object] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(made)


@pytest.mark.usefixtures("a_new_process")
def test_an_import_that_fails_leaves_everything_as_it_was() -> None:
    with pytest.raises(ImportError), without_pauses():
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_program_that_ends_has_nothing_to_complain_of() -> None:
    """Triton's bindings name what is still there when the interpreter has gone."""
    program = (
        "from clove_ssl.command_line.importing import without_pauses\n"
        "with without_pauses():\n"
        "    import torch, torch._dynamo, importlib.util\n"
        "    if importlib.util.find_spec('triton'): import triton.language\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_the_process_of_somebody_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", gc)  # any module will do
    with without_pauses():
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def imported(program: str) -> set[str]:
    """The modules that a program has imported at its end."""
    told = f"{program}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_compiler_waits_until_it_is_asked_for() -> None:
    program = (
        "from clove_ssl.command_line.importing import starting\n"
        "with starting():\n"
        "    import clove_ssl.pretraining.run\n"
        "import torch, torchvision\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "optimizer.load_state_dict(optimizer.state_dict())\n"
    )
    found = imported(program)
    assert "torchvision.ops.roi_align" in found
    assert "torch._dynamo" not in found


def test_what_stands_in_for_the_compiler_asks_the_real_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", importing._StandIn("json.decoder"))
    stand_in: Any = sys.modules["torch._dynamo.utils"]
    assert stand_in.is_compile_supported is importing._is_compile_supported
    assert stand_in.JSONDecoder is json.JSONDecoder, "what it does not know it looks up"
    assert "torch._dynamo.utils" not in sys.modules
