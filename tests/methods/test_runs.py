"""Tiny runs of every method: their losses are the recorded ones, and a crash changes nothing.

A refactoring that changes the recorded numbers is not a refactoring. When a
change is meant, run this file with ``--update-recorded`` and say why in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.runs.method_runs import TRAINED, WITH_TEACHER, method_run, small_method

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.pretraining import run as pretraining

TAUGHT_PLUS = "clove-plus, teacher"  # as runs had it before there was a choice
RECORDED = Path(__file__).parents[1] / "recorded" / "methods.json"
FIGURES = {
    "byol": ("loss", "cos_positive", "gradient_norm"),
    "clove-plus": ("loss", "loss_cells", "loss_whole", "balance", "gradient_norm"),
    TAUGHT_PLUS: ("loss", "loss_cells", "loss_whole", "balance", "gradient_norm"),
    "cp2": ("loss", "loss_dense", "foreground_cells", "gradient_norm"),
    "densecl": ("loss", "loss_dense", "cos_positive_dense", "gradient_norm"),
    "detco": ("loss", "loss_local", "loss_local_to_global", "gradient_norm"),
    "inscon": ("loss", "loss_dense", "positives_per_image_global", "gradient_norm"),
    "moco": ("loss", "cos_positive", "cos_negative", "gradient_norm"),
    "pixpro": ("loss", "cos_instance", "positives_per_image_global", "gradient_norm"),
    "resim": ("loss", "loss_c4", "loss_c3", "windows_kept_c3", "cos_positive_c4", "gradient_norm"),
    "setsim": ("loss", "loss_dense", "positives_per_image_global", "gradient_norm"),
    "slotcon": ("loss", "loss_group", "images_without_overlap", "gradient_norm"),
    "supervised": ("loss", "accuracy", "gradient_norm"),
    # Its gradient jumps where rounding gives a cell another nearest one.
    "vicregl": ("loss", "loss_global", "loss_local"),
}


def test_every_method_that_trains_has_its_turn() -> None:
    assert set(FIGURES) - {TAUGHT_PLUS} == set(TRAINED) - {"clove"}  # which has a file of its own


def run_of(out: Path, name: str) -> PretrainConfig:
    if name != TAUGHT_PLUS:
        return method_run(out, name)
    return method_run(out, "clove-plus", method=small_method("clove-plus", size=64, **WITH_TEACHER))


@pytest.mark.parametrize("name", list(FIGURES))
def test_a_run_is_the_recorded_one_and_survives_a_crash(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    pretraining.pretrain(run_of(tmp_path / "whole", name))
    lines = figures(tmp_path / "whole")
    check_recorded(name, lines, update=request.config.getoption("--update-recorded"))
    crash_after(6, monkeypatch, run_of(tmp_path / "torn", name))
    assert pretraining.resume(tmp_path / "torn").finished
    assert_same(final_state(tmp_path / "torn"), final_state(tmp_path / "whole"))
    assert figures(tmp_path / "torn") == lines


def check_recorded(name: str, lines: list[dict[str, float]], *, update: bool) -> None:
    """Compare ten steps with the file, or write them into it."""
    assert len(lines) == 10
    measured = {figure: [line[figure] for line in lines] for figure in FIGURES[name]}
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if update:
        RECORDED.write_text(json.dumps(recorded | {name: measured}, indent=1) + "\n")
        return
    for figure, values in measured.items():
        assert values == pytest.approx(recorded[name][figure], rel=1e-3, abs=1e-4), figure
