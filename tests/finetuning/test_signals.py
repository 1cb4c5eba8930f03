"""Signals while a fine-tuning run trains or evaluates."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.killing import has_said, start, wait_until
from builders.runs.tiny_finetuning import tiny_finetuning

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.finetuning.evaluate import Evaluation
from clove_ssl.runs.directory import RunDirectory

pytestmark = pytest.mark.forks

SMALL = "timm:test_resnet"
LONGEST = 10.0
"""Seconds that a worker may need to notice; it looks every five."""


def test_a_run_that_is_ended_while_it_evaluates_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny_finetuning("voc-semantic", tmp_path / "run", iterations=1)
    config = replace(config, data=replace(config.data, workers=1))
    files.save(config, tmp_path / "config.yaml")
    predictions = Evaluation._predictions

    def ended(evaluation: Evaluation, model: Any) -> list[Any]:
        batches = evaluation.task.test_batches(evaluation.data, evaluation.reading)
        next(iter(batches))
        os.kill(os.getpid(), signal.SIGTERM)
        return predictions(evaluation, model)

    monkeypatch.setattr(Evaluation, "_predictions", ended)
    start = ["finetune", "--config", str(tmp_path / "config.yaml"), "--out", str(config.out)]
    assert cli.main(start) == 0
    assert f"Go on with: clove resume {config.out}" in capfd.readouterr().out
    assert not RunDirectory(config.out).scores.exists()
    assert not _children(os.getpid()), "a worker lives on"


def test_workers_do_not_outlive_a_main_process_that_is_killed(tmp_path: Path) -> None:
    config = tiny_finetuning("voc-semantic", tmp_path / "run", iterations=10_000)
    config = replace(config, architecture=SMALL, data=replace(config.data, workers=2))
    files.save(config, tmp_path / "config.yaml")
    out = str(config.out)
    process = start("finetune", "--config", str(tmp_path / "config.yaml"), "--out", out)
    wait_until(process, lambda: has_said(config.out / "log.txt", "step 2/"))
    assert process.pid is not None
    workers = _children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.join()
    until = time.monotonic() + LONGEST
    while any(map(_lives, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_lives, workers)), "a worker lives on"


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _lives(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
