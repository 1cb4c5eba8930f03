"""Runs of BYOL, MoCo and DenseCL that were interrupted end like those that were not."""

from __future__ import annotations

from pathlib import Path

import pytest
from references.contrastive_runs import NAMES, small_method
from references.interruptions import assert_same, crash_after, figures, final_state
from references.tiny_runs import tiny_config

from clove_ssl.config.pretraining import OptimizerConfig, PretrainConfig
from clove_ssl.engine import pretraining


def run_config(out: Path, name: str) -> PretrainConfig:
    """Three steps of two micro-batches."""
    optimizer = OptimizerConfig(name="sgd", lr=0.5, warmup_epochs=0.0)
    method = small_method(name, size=32)
    return tiny_config(out, method=method, optimizer=optimizer, steps=3, micro_batch=4)


@pytest.mark.parametrize("name", NAMES)
def test_a_crashed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pretraining.pretrain(run_config(tmp_path / "whole", name))
    crash_after(1, monkeypatch, run_config(tmp_path / "torn", name))
    assert pretraining.resume(tmp_path / "torn").finished
    assert_same(final_state(tmp_path / "torn"), final_state(tmp_path / "whole"))
    assert figures(tmp_path / "torn") == figures(tmp_path / "whole")
    assert len(figures(tmp_path / "whole")) == 3
