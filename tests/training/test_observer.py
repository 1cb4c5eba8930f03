"""A run that goes wrong says so, in time and in words."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.runs.tiny_runs import tiny_config

from clove_ssl.config.pretraining import HealthConfig
from clove_ssl.errors import UserError
from clove_ssl.methods.base import Progress, StepOutput
from clove_ssl.methods.clove.method import CLoVE
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.training.checkpoints import CheckpointStore
from clove_ssl.training.loop import StepSignals, Verdict
from clove_ssl.training.observer import WaitingTime, describe_metrics


@pytest.mark.filterwarnings("error:Converting a tensor with requires_grad")
def test_a_loss_that_is_not_finite_stops_before_any_weight_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = CLoVE.forward
    seen: dict[str, Any] = {}

    def spoiled(method: CLoVE, batch: Any, progress: Progress) -> StepOutput:
        output = forward(method, batch, progress)
        if progress.step != 3:
            return output
        seen["method"] = method
        seen["student"] = copy.deepcopy(method.encoder.state_dict())
        return StepOutput(output.loss * torch.inf, output.metrics, output.artifacts)

    monkeypatch.setattr(CLoVE, "forward", spoiled)
    with pytest.raises(UserError) as error:
        pretraining.pretrain(tiny_config(tmp_path / "run"))
    message = str(error.value)
    assert "not finite at step 4, process 0" in message
    assert "cos_positive" in message
    store = CheckpointStore(RunDirectory(tmp_path / "run").checkpoints, keep=2, warn=print)
    assert store.last_path() in message
    assert store.all()[0].is_intact()
    for name, value in seen["method"].encoder.state_dict().items():
        assert torch.equal(value, seen["student"][name]), name


def test_a_process_with_a_finite_loss_says_that_another_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = Verdict(non_finite=True, stop=False)
    monkeypatch.setattr(StepSignals, "verdict", lambda signals: agreed)
    said = "another process is not finite at step 1, process 0 has: loss 100"
    with pytest.raises(UserError, match=said):
        pretraining.pretrain(tiny_config(tmp_path / "run"))


def test_a_collapse_is_warned_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = HealthConfig(min_rank=1e6)
    pretraining.pretrain(tiny_config(tmp_path / "run", steps=3, health=limits))
    output = capsys.readouterr().out
    assert output.count("features may") == 1
    assert "effective_rank is" in output
    assert "docs/health.md" in output


def test_the_metrics_of_an_error_leave_out_what_is_zero() -> None:
    assert describe_metrics({"loss": float("nan"), "none": 0.0, "cos": 0.5}) == "loss nan, cos 0.5"


def test_waits_are_added_up_until_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([1.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    waiting = WaitingTime(torch.device("cpu"))
    for _ in range(2):
        with waiting.counted():
            pass
    assert waiting.take_seconds() == 6
    assert waiting.take_seconds() == 0
