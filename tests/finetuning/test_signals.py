"""Signals while a fine-tuning run evaluates: the same courtesy as while it trains."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.tiny_finetuning import tiny_finetuning

from clove_ssl import cli
from clove_ssl.config import files
from clove_ssl.finetuning.evaluate import Evaluation
from clove_ssl.runs.directory import RunDirectory

pytestmark = pytest.mark.forks


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
    assert not _children(), "a worker lives on"


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
