"""SIGKILL, SIGTERM and SIGINT: nothing is lost but the work since the last checkpoint."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from references.killing import command, run_with_kills, weights_hash
from references.tiny_runs import tiny_config

from clove_ssl.config import files
from clove_ssl.config.pretraining import CheckpointConfig
from clove_ssl.engine import pretraining


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "whole", steps=12)
    pretraining.pretrain(config)
    run_with_kills(tiny_config(tmp_path / "killed", steps=12), kills=1, seed=0)
    assert weights_hash(tmp_path / "whole") == weights_hash(tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    never = CheckpointConfig(every_epochs=1e6)
    config = tiny_config(tmp_path / "run", steps=10_000, checkpoints=never)
    files.save(config, tmp_path / "config.yaml")
    arguments = ["pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(config.out)]
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True)
    log = config.out / "log.txt"
    while not (log.exists() and "step 2/" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"clove resume {config.out}" in output
    assert len(list((config.out / "checkpoints").glob("*.pt"))) == 1
