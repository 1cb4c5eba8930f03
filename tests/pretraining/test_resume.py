"""A run that was interrupted ends like one that was not, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.runs.tiny_runs import tiny_config, tiny_method

from clove_ssl.config.pretraining import PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.report.page import write_report
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.provenance import read_starts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    pretraining.pretrain(tiny_config(out))
    return out


def assert_survives_a_crash(
    torn: PretrainConfig, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third step is lost, since checkpoints are of every second."""
    crash_after(3, monkeypatch, torn)
    assert pretraining.resume(torn.out).finished
    assert_same(final_state(torn.out), final_state(whole))
    assert figures(torn.out) == figures(whole)


def test_a_crashed_run_ends_like_an_uninterrupted_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_survives_a_crash(tiny_config(tmp_path / "torn"), whole, monkeypatch)


@pytest.mark.parametrize(
    "changes",
    [{"method": tiny_method(negatives="inter", queue_size=24)}, {"micro_batch": 4}],
    ids=["inter", "accumulated"],
)
def test_a_queue_and_accumulation_survive_a_crash(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "whole", steps=4, **changes))
    torn = tiny_config(tmp_path / "torn", steps=4, **changes)
    assert_survives_a_crash(torn, tmp_path / "whole", monkeypatch)


def test_workers_do_not_change_a_run(whole: Path, tmp_path: Path) -> None:
    data = replace(tiny_config(whole).data, workers=2)
    pretraining.pretrain(tiny_config(tmp_path / "two", data=data))
    assert figures(whole) == figures(tmp_path / "two")


def test_resuming_a_finished_run_changes_nothing(whole: Path) -> None:
    before = final_state(whole)
    card = (whole / "export" / "model_card.md").read_text()
    assert pretraining.resume(whole).finished
    assert_same(final_state(whole), before)
    assert (whole / "export" / "model_card.md").read_text() == card


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash_after(2, monkeypatch, tiny_config(tmp_path / "run"))
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("scenes_count: 20", "scenes_count: 21"))
    with pytest.raises(UserError, match="has 21 images, but this run was started with 20"):
        pretraining.resume(tmp_path / "run")


def test_a_run_of_an_earlier_version_is_reported_and_resumed(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = tiny_config(tmp_path / "torn")
    crash_after(3, monkeypatch, torn)
    run = RunDirectory(torn.out)
    history = json.loads(run.provenance.read_text())
    del history["number"], history["bad_files"], history["starts"][0]["choices"]
    run.provenance.write_text(json.dumps(history))
    with run.log.open("a") as log:
        log.write("2025-01-01 10:00:00 warning cannot read a.jpg: an empty file\n")
    assert "1 file could not be read" in " ".join(write_report(run).read_text().split())
    assert pretraining.resume(torn.out).finished
    assert_same(final_state(torn.out), final_state(whole))
    assert figures(torn.out) == figures(whole)
    first, second = read_starts(run)
    assert "choices" not in first
    assert second["choices"]["plan"]["images"] == 20
