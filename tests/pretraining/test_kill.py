"""SIGKILL, SIGTERM and SIGINT: nothing is lost but the work since the last checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from builders.runs.killing import has_said, run_with_kills, start, wait_until, weights_hash
from builders.runs.tiny_runs import NO_CHECKPOINTS, tiny_config

from clove_ssl.config import files
from clove_ssl.pretraining import run as pretraining

pytestmark = [pytest.mark.forks, pytest.mark.usefixtures("one_thread")]


def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "whole", steps=8, checkpoints=NO_CHECKPOINTS))
    killed = tiny_config(tmp_path / "killed", steps=8)
    (step,) = run_with_kills(killed, kills=1, seed=0, longest_pause=0.2)
    assert step < 8
    assert weights_hash(tmp_path / "whole") == weights_hash(tmp_path / "killed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    config = tiny_config(tmp_path / "run", steps=10_000, checkpoints=NO_CHECKPOINTS)
    files.save(config, tmp_path / "config.yaml")
    arguments = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(config.out)]
    process = start(*arguments, said=tmp_path / "said.txt")
    wait_until(process, lambda: has_said(config.out / "log.txt", "step 2/"))
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(timeout=60)
    assert process.exitcode == 0
    assert f"clove resume {config.out}" in (tmp_path / "said.txt").read_text()
    assert len(list((config.out / "checkpoints").glob("*.pt"))) == 1
