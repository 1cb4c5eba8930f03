"""Runs that go on elsewhere, with their images moved, or for longer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.files.photos import save_photos
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.runs.tiny_runs import tiny_config

from clove_ssl import whole_runs
from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining
from clove_ssl.runs.directory import RunDirectory


def photo_run(out: Path, source: str, **changes: Any) -> PretrainConfig:
    return tiny_config(out, data=DataConfig(source=source, workers=0), **changes)


@pytest.fixture
def torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has died, started with relative paths in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    save_photos(tmp_path / "photos", 9)
    crash_after(3, monkeypatch, photo_run(Path("runs/a"), "photos", steps=5))
    return tmp_path / "runs" / "a"


@pytest.mark.usefixtures("unmeasured")
def test_a_moved_run_with_moved_images_ends_as_it_would_have(
    torn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretraining.pretrain(photo_run(Path("runs/whole"), "photos", steps=5))
    (tmp_path / "archive").mkdir()
    moved = torn.rename(tmp_path / "archive" / "b")
    (tmp_path / "photos").rename(tmp_path / "archive" / "pictures")
    monkeypatch.chdir("/")
    with pytest.raises(UserError, match=f"where they are now: clove resume {moved} --data"):
        whole_runs.resume(moved)
    assert whole_runs.resume(moved, data=tmp_path / "archive" / "pictures", max_bad=0.5).finished
    assert_same(final_state(moved), final_state(tmp_path / "runs" / "whole"))
    assert figures(moved) == figures(tmp_path / "runs" / "whole")
    kept = files.load(PretrainConfig, RunDirectory(moved).config).data
    assert (kept.source, kept.max_bad) == (str(tmp_path / "archive" / "pictures"), 0.5)


@pytest.mark.usefixtures("unmeasured")
def test_relative_paths_of_earlier_versions_hold_in_other_folders(
    torn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, provenance = torn / "config.yaml", torn / "provenance.json"
    values = yaml.safe_load(config.read_text())
    values["data"]["source"] = "photos"
    del values["data"]["more"]
    config.write_text(yaml.safe_dump(values))
    provenance.write_text(provenance.read_text().replace('"folder"', '"unknown"'))
    monkeypatch.chdir("/")
    assert whole_runs.resume(torn).finished


def test_a_renamed_photo_is_noticed(torn: Path, tmp_path: Path) -> None:
    first, *_, last = sorted((tmp_path / "photos").iterdir())
    first.rename(last.with_name("zzz" + first.suffix))
    with pytest.raises(UserError, match="other names"):
        whole_runs.resume(torn)


@pytest.mark.usefixtures("unmeasured")
def test_a_finished_run_is_made_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretraining.pretrain(tiny_config(tmp_path / "run", steps=2))
    first = (tmp_path / "run/export/backbone.safetensors").read_bytes()
    with pytest.raises(UserError, match="has done 2 steps"):
        whole_runs.resume(tmp_path / "run", steps=1)
    result = whole_runs.resume(tmp_path / "run", epochs=2)
    assert (result.finished, result.step) == (True, 5)  # of 8 out of 20 images
    said = " ".join(capsys.readouterr().out.split())
    assert "5 steps instead of 2" in said
    assert "not the same as a run that was planned this long" in said
    export = tmp_path / "run" / "export"
    assert (export / "backbone-step-2.safetensors").read_bytes() == first
    assert (export / "backbone.safetensors").read_bytes() != first
    longer = files.load(PretrainConfig, tmp_path / "run" / "config.yaml")
    assert (longer.epochs, longer.steps) == (2, None)


def test_an_earlier_run_is_overwritten_only_on_request(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", steps=1)
    pretraining.pretrain(config)
    with pytest.raises(UserError, match="not empty"):
        pretraining.pretrain(config)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"also holds notes\.txt"):
        pretraining.pretrain(config, overwrite=True)
    (tmp_path / "run" / "notes.txt").unlink()
    elsewhere = replace(config, data=DataConfig(source="nowhere"))
    with pytest.raises(UserError, match="nowhere"):  # found wrong before anything is removed
        pretraining.pretrain(elsewhere, overwrite=True)
    assert (tmp_path / "run" / "export" / "backbone.safetensors").is_file()
    assert pretraining.pretrain(replace(config, seed=1), overwrite=True).finished
    assert files.load(PretrainConfig, tmp_path / "run" / "config.yaml").seed == 1


def test_paths_are_made_to_hold_anywhere() -> None:
    data = DataConfig(source="photos", more=("s3://bucket/{0..3}.tar", "scenes")).located()
    assert data.source == str(Path.cwd() / "photos")
    assert data.more == ("s3://bucket/{0..3}.tar", "scenes")
