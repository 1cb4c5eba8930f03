"""Runs that die in the middle, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.loop import TrainingLoop

TIMING = ("images_per_second", "data_wait")
C = TypeVar("C")


class Crash(Exception):
    """Stands for anything that ends a process."""


def crash_after(
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
    config: C,
    start: Callable[[C], Any] = pretraining.pretrain,
    *,
    runs_before: int = 0,
) -> None:
    """Run until ``steps`` steps are done, then die without cleaning up.

    ``runs_before`` is the number of runs that get over it.
    """
    train_step = TrainingLoop._train_step
    runs = count()

    def dying(loop: TrainingLoop, *args: Any) -> bool:
        if loop.step == steps and next(runs) == runs_before:
            raise Crash
        return train_step(loop, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_train_step", dying)
        with pytest.raises(Crash):
            start(config)


def final_state(run: Path) -> dict[str, Any]:
    """What the last checkpoint holds."""
    store = CheckpointStore(RunDirectory(run).checkpoints, keep=2, warn=print)
    state = store.load_latest()
    assert state is not None
    return state


def figures(run: Path) -> list[dict[str, float]]:
    """Every logged figure that does not depend on the clock."""
    lines = read_metrics(RunDirectory(run))
    return [{k: v for k, v in line.items() if k not in TIMING} for line in lines]


def assert_same(a: Any, b: Any) -> None:
    """Equal to the last bit, through nested containers."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b
