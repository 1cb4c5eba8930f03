"""What happens after the last step: a run is measured, drawn and judged, or says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from builders.runs.tiny_runs import tiny_config

from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.report.command import conclude
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.weights.safetensors_file import save_backbone


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = directory.create(tmp_path / "run")
    files.save(tiny_config(made.path), made.config)
    rows = [{"step": step, "loss": 99.0, "epoch": step * 0.4} for step in range(1, 7)]
    made.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_a_finished_run_is_measured_drawn_and_judged(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    backbone = build_backbone(tiny_config(run.path).backbone)
    save_backbone(backbone, run.backbone, {"method": "clove", "config_hash": "0"})
    conclude(run.path)
    said = capsys.readouterr().out
    assert "random weights do so" in said
    drawn = {path.name for path in run.pictures.iterdir()}
    assert drawn == {"features.png", "matches.png", "similarity.png"}
    page = run.report.read_text()
    assert page.count('src="data:image/') == 3
    assert page.index('class="verdict') < page.index('id="pictures"') < page.index('id="curves"')


def test_what_cannot_be_measured_does_not_spoil_a_finished_run(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.backbone.write_bytes(b"weights")
    conclude(run.path)
    said = " ".join(capsys.readouterr().out.split())
    assert "warning the features are not measured" in said
    assert "Too short to tell." in said
    assert run.report.is_file()


@pytest.mark.parametrize(("measured", "verb"), [(False, "probe"), (True, "report")])
def test_ctrl_c_leaves_out_the_rest_and_says_how_to_do_it_later(
    measured: bool,
    verb: str,
    run: RunDirectory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        if measured:
            run.probes.write_text("[]")
        raise KeyboardInterrupt

    monkeypatch.setattr("clove_ssl.report.command._measure_and_paint", interrupted)
    run.backbone.write_bytes(b"weights")
    conclude(run.path)
    assert f"To do it later: clove {verb} {run.path}" in capsys.readouterr().out


def test_an_interrupted_run_is_left_alone(run: RunDirectory) -> None:
    shutil.rmtree(run.backbone.parent)
    conclude(run.path)
    assert not run.report.exists()
