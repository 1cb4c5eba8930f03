"""Checkpoints that are intact, but not what the run needs: the one before, or one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.console import Console
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Learner
from clove_ssl.pretraining.choices import plan_run
from clove_ssl.training import checkpoints
from clove_ssl.training.checkpoints import CheckpointStore, load_state
from clove_ssl.training.loop import TrainingLoop
from clove_ssl.training.numerics import choose_precision
from clove_ssl.training.processes import Process

CPU = torch.device("cpu")
ALONE = Process(0, 1, 0, 1, CPU)
State = dict[str, Any]


class Layer(Learner):
    """The smallest thing that can be trained."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)


class Feed:
    def state(self) -> State:
        return {"images": 8}


def loop_in(folder: Path, said: list[str], *, width: int = 3, lr: float = 0.1) -> TrainingLoop:
    learner = Layer(width)
    config = PretrainConfig(out=folder, steps=4, batch_size=2)
    loop = TrainingLoop(
        learner=learner,
        optimizer=torch.optim.SGD(learner.parameters(), lr=lr, momentum=0.9),
        lr=lambda step: lr,
        plan=plan_run(config, images=8, processes=1, device_type="cpu"),
        precision=choose_precision("fp32", CPU),
        process=ALONE,
        store=CheckpointStore(folder, keep=9, warn=said.append),
        console=Console(speaks=False),
    )
    learner.layer(torch.ones(1, width)).sum().backward()
    loop.optimizer.step()
    return loop


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def folder(tmp_path: Path, said: list[str]) -> Path:
    """Checkpoints of steps 1 and 2."""
    loop = loop_in(tmp_path, said)
    for loop.step in (1, 2):
        loop.store.save(loop.step, loop._state(Feed()))  # type: ignore[arg-type]
    return tmp_path


def rewrite(folder: Path, change: Callable[[State], Any]) -> None:
    """Change the newest checkpoint, whose checksum is right again."""
    path = folder / "step-000000002.pt"
    state = load_state(path)
    changed = change(state)
    checkpoints._write(path, state if changed is None else changed)


DAMAGED: dict[str, Callable[[State], Any]] = {
    "no step": lambda state: state.__delitem__("step"),
    "a negative step": lambda state: state.update(step=-3),
    "another step": lambda state: state.update(step=7),
    "a step in words": lambda state: state.update(step="2"),
    "no learner": lambda state: state.__delitem__("learner"),
    "no optimizer": lambda state: state.__delitem__("optimizer"),
    "no feed": lambda state: state.__delitem__("feed"),
    "a feed of another kind": lambda state: state.update(feed=[1]),
    "a list": lambda state: [1, 2],
    "a tensor": lambda state: torch.zeros(3),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_checkpoint_without_its_parts_gives_way_to_the_one_before(
    kind: str, folder: Path, said: list[str]
) -> None:
    rewrite(folder, DAMAGED[kind])
    loop = loop_in(folder, said)
    assert loop.restore() == {"images": 8}
    assert loop.step == 1
    assert len(said) == 1
    assert "step-000000002.pt" in said[0]


MISFITS: dict[str, Callable[[State], Any]] = {
    "another shape": lambda state: state["learner"].update({"layer.weight": torch.zeros(5, 5)}),
    "a weight missing": lambda state: state["learner"].__delitem__("layer.weight"),
    "weights of another network": lambda state: state.update(learner={"stem": torch.zeros(1)}),
    "no tensor": lambda state: state["learner"].update({"layer.weight": "odd"}),
    "an optimizer of other weights": lambda state: state["optimizer"].update(param_groups=[]),
    "a momentum of another shape": lambda state: state["optimizer"]["state"][0].update(
        momentum_buffer=torch.zeros(7)
    ),
    "an odd generator": lambda state: state.update(random={"cpu": torch.zeros(3)}),
    "no generator": lambda state: state.update(random={}),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_checkpoint_of_another_network_is_one_clear_line(
    kind: str, folder: Path, said: list[str]
) -> None:
    rewrite(folder, MISFITS[kind])
    with pytest.raises(UserError, match=r"step-000000002\.pt does not fit this run") as caught:
        loop_in(folder, said).restore()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_run_with_another_config_says_so(folder: Path, said: list[str]) -> None:
    with pytest.raises(UserError, match="config.yaml was changed"):
        loop_in(folder, said, width=4).restore()


def test_checkpoints_carry_a_version_and_old_ones_without_still_load(
    folder: Path, said: list[str]
) -> None:
    path = folder / "step-000000002.pt"
    assert load_state(path)["format"] == checkpoints.FORMAT
    rewrite(folder, lambda state: state.__delitem__("format"))
    loop = loop_in(folder, said)
    loop.restore()
    assert (loop.step, said) == (2, [])


@pytest.mark.parametrize("version", [checkpoints.FORMAT + 1, "new", None])
def test_a_checkpoint_of_a_later_version_asks_for_it(
    version: object, folder: Path, said: list[str]
) -> None:
    rewrite(folder, lambda state: state.update(format=version))
    with pytest.raises(UserError, match="pip install --upgrade clove-ssl"):
        loop_in(folder, said).restore()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\xd8", b"", b"0" * 10**6])
def test_a_checksum_that_is_no_text_is_a_damage(
    content: bytes, folder: Path, said: list[str]
) -> None:
    (folder / "step-000000002.sha256").write_bytes(content)
    loop = loop_in(folder, said)
    loop.restore()
    assert (loop.step, len(said)) == (1, 1)
