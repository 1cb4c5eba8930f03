"""Runs of BYOL, MoCo and DenseCL that were interrupted end like those that were not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from references.contrastive_runs import NAMES, small_method
from references.tiny_runs import tiny_config

from clove_ssl.config.pretraining import OptimizerConfig, PretrainConfig
from clove_ssl.engine import pretraining
from clove_ssl.engine.checkpoints import CheckpointStore
from clove_ssl.engine.loop import TrainingLoop
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import read_metrics


class Crash(Exception):
    """Stands for anything that ends a process."""


def run_config(out: Path, name: str) -> PretrainConfig:
    """Three steps of two micro-batches."""
    optimizer = OptimizerConfig(name="sgd", lr=0.5, warmup_epochs=0.0)
    method = small_method(name, size=32)
    return tiny_config(out, method=method, optimizer=optimizer, steps=3, micro_batch=4)


def crash_after(steps: int, monkeypatch: pytest.MonkeyPatch, config: PretrainConfig) -> None:
    train_step = TrainingLoop._train_step

    def dying(loop: TrainingLoop, *args: Any) -> bool:
        if loop.step == steps:
            raise Crash
        return train_step(loop, *args)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_train_step", dying)
        with pytest.raises(Crash):
            pretraining.pretrain(config)


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    state = CheckpointStore(RunDirectory(run).checkpoints, keep=2, warn=print).load_latest()
    assert state is not None
    weights: dict[str, torch.Tensor] = state["learner"]
    return weights


@pytest.mark.parametrize("name", NAMES)
def test_a_crashed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pretraining.pretrain(run_config(tmp_path / "whole", name))
    crash_after(1, monkeypatch, run_config(tmp_path / "torn", name))
    assert pretraining.resume(tmp_path / "torn").finished
    whole, torn = final_weights(tmp_path / "whole"), final_weights(tmp_path / "torn")
    assert whole.keys() == torn.keys()
    assert all(torch.equal(whole[key], torn[key]) for key in whole)
    losses = [
        [line["loss"] for line in read_metrics(RunDirectory(tmp_path / run))]
        for run in ("whole", "torn")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
