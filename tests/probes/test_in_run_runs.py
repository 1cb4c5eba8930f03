"""Probes on the way: they change nothing, survive interruptions, and keep the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.runs.tiny_runs import tiny_config
from safetensors import safe_open

from clove_ssl.config.pretraining import CheckpointConfig, PretrainConfig
from clove_ssl.config.probing import RunProbeConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.probes.in_run import RunProbes
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.metrics import PROBE_SECONDS
from clove_ssl.weights.load import load_backbone

EVERY_SECOND_STEP = RunProbeConfig(
    every_epochs=0.8, min_steps=1, images=8, keep_best="correspondence"
)
EVERY_THIRD_STEP = CheckpointConfig(every_epochs=1.2, min_steps=1)


def config(out: Path, **changes: Any) -> PretrainConfig:
    return tiny_config(
        out, **{"probe": EVERY_SECOND_STEP, "checkpoints": EVERY_THIRD_STEP, **changes}
    )


def untimed(run: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != PROBE_SECONDS} for row in figures(run)]


def probed(run: Path) -> list[dict[str, float]]:
    return [row for row in figures(run) if PROBE_SECONDS in row]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    pretraining.pretrain(config(out))
    return out


def test_a_run_with_probes_learns_what_it_learns_without(whole: Path, tmp_path: Path) -> None:
    pretraining.pretrain(config(tmp_path / "plain", probe=RunProbeConfig(every_epochs=None)))
    assert_same(final_state(whole), final_state(tmp_path / "plain"))
    trained = [row for row in figures(whole) if "loss" in row]
    assert trained == figures(tmp_path / "plain")


def test_probes_are_logged_at_their_steps_up_to_the_end(whole: Path) -> None:
    assert [row["step"] for row in probed(whole)] == [2, 4, 6]
    for row in probed(whole):
        assert 0 < row["probe_correspondence"] < 1
        assert row["probe_effective_rank"] > 1
        assert row[PROBE_SECONDS] > 0
    assert "Probes over time" in RunDirectory(whole).report.read_text()
    assert "correspondence" in RunDirectory(whole).model_card.read_text()


def test_an_interrupted_run_with_probes_ends_like_a_whole_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "torn"
    crash_after(4, monkeypatch, config(out))  # after the second probe, which is then repeated
    assert pretraining.resume(out).finished
    assert_same(final_state(out), final_state(whole))
    assert untimed(out) == untimed(whole)
    for name in ("backbone", "best_backbone"):
        weights = [load_backbone(getattr(RunDirectory(run), name)) for run in (out, whole)]
        assert_same(weights[0].state_dict(), weights[1].state_dict())


@pytest.mark.parametrize("moment", ["in_run.RunProbes.measure", "in_run.save_backbone"])
def test_a_probe_that_was_lost_after_the_last_step_is_made_up_for(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"clove_ssl.probes.{moment}", dying)
        with pytest.raises(KeyboardInterrupt):
            pretraining.pretrain(config(tmp_path / "run", steps=2))
    assert not probed(tmp_path / "run")
    assert pretraining.resume(tmp_path / "run").finished
    assert [row["step"] for row in probed(tmp_path / "run")] == [2]
    assert RunDirectory(tmp_path / "run").best_backbone.is_file()


def test_the_best_backbone_is_that_of_the_best_probe(whole: Path) -> None:
    best = max(probed(whole), key=lambda row: row["probe_correspondence"])
    with safe_open(RunDirectory(whole).best_backbone, "pt") as file:
        metadata = file.metadata()
    assert int(metadata["step"]) == best["step"]
    assert float(metadata["probe_correspondence"]) == best["probe_correspondence"]
    assert load_backbone(RunDirectory(whole).best_backbone).stage == "c4"


def test_resuming_a_finished_run_probes_nothing_again(whole: Path) -> None:
    before = figures(whole)
    card = RunDirectory(whole).model_card.read_text()
    assert pretraining.resume(whole).finished
    assert figures(whole) == before
    assert RunDirectory(whole).model_card.read_text() == card


def test_a_probe_the_data_does_not_allow_is_refused_before_the_run(tmp_path: Path) -> None:
    probe = RunProbeConfig(every_epochs=1, min_steps=1, names=("knn",))
    with pytest.raises(UserError, match="The probe knn needs classes"):
        pretraining.pretrain(config(tmp_path / "run", probe=probe))
    assert not (tmp_path / "run").exists()


def test_a_probe_that_fails_on_the_way_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: RunProbes, *args: Any) -> Any:
        raise UserError("x.png cannot be probed.")

    monkeypatch.setattr(RunProbes, "measure", failing)
    assert pretraining.pretrain(config(tmp_path / "run", steps=2)).finished
    assert "left out: x.png cannot be probed" in RunDirectory(tmp_path / "run").log.read_text()
