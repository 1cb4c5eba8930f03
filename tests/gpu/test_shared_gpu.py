"""Two processes that share a GPU equal one process with the whole batch; fp16 skips overflows."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders.gpu_marks import NEEDS_GPU
from builders.paired_processes import free_port
from builders.runs.interruptions import final_state
from builders.runs.tiny_runs import tiny_config

from clove_ssl.config import files
from clove_ssl.config.pretraining import BackboneConfig, OptimizerConfig, PretrainConfig
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics
from clove_ssl.training.numerics import Precision

pytestmark = NEEDS_GPU


def config_for(out: Path, **changes: Any) -> PretrainConfig:
    network = BackboneConfig(name="resnet18", stage="c4")
    options = {"device": "cuda", "precision": "fp32", "backbone": network, "steps": 8}
    return replace(tiny_config(out), **{**options, **changes})


def losses(run: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(RunDirectory(run)) if "loss" in line]


@pytest.mark.parametrize("compiled", ["never", "always"])
def test_two_processes_on_one_gpu_equal_one(tmp_path: Path, compiled: Any) -> None:
    one = config_for(tmp_path / "one")
    pretraining.pretrain(one)
    two = config_for(tmp_path / "two", share_gpus=True, compile=compiled)
    files.save(two, tmp_path / "two.yaml")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "clove_ssl", "pretrain"]
    command += ["--config", str(tmp_path / "two.yaml"), "--out", str(two.out)]
    done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    # Sums of several processes are rounded in another order; LARS carries that on.
    assert losses(two.out) == pytest.approx(losses(one.out), rel=2e-3)


def test_fp16_trains(tmp_path: Path) -> None:
    config = config_for(tmp_path / "run", precision="fp16")
    assert pretraining.pretrain(config).finished
    found = losses(config.out)
    assert len(found) == 8
    assert found[-1] < found[0]


@pytest.mark.parametrize("overflows", [True, False])
def test_fp16_skips_a_step_that_overflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overflows: bool
) -> None:
    """Of a step that is skipped the learning rate makes no difference."""
    if overflows:
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**100)
        monkeypatch.setattr(Precision, "scaler", lambda self: copy.deepcopy(scaler))
    weights = []
    for rate in (0.1, 5.0):
        optimizer = OptimizerConfig(lr=rate, warmup_epochs=0.0)
        out = tmp_path / str(rate)
        config = config_for(out, precision="fp16", steps=1, optimizer=optimizer)
        pretraining.pretrain(config)
        learner = final_state(out)["learner"]
        weights.append(learner["encoder.backbone.body.conv1.weight"])
    assert torch.equal(*weights) == overflows
