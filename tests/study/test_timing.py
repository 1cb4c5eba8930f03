"""The timing of a pre-training, before a study with a budget in seconds."""

from __future__ import annotations

from pathlib import Path

from builders.runs.tiny_runs import tiny_config

from clove_ssl.config.probing import RunProbeConfig
from clove_ssl.runs import directory
from clove_ssl.study.config import BudgetConfig
from clove_ssl.study.plan import read_timing, time_steps


def test_a_run_that_keeps_its_best_backbone_can_be_timed(tmp_path: Path) -> None:
    probe = RunProbeConfig(images=8, keep_best="correspondence")
    config = tiny_config(tmp_path / "unused", probe=probe)
    place = directory.make(tmp_path / "timing")
    budget = BudgetConfig(kind="seconds", amount=1.0, timed_steps=1, warm_steps=1)
    timing = time_steps(place, config, budget)
    assert timing.seconds_per_step > 0
    assert read_timing(place) == timing
