"""The verbs as Python functions."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from builders.runs.tiny_runs import tiny_config

import clove_ssl
from clove_ssl.errors import UserError
from clove_ssl.pretraining import run as pretraining


def test_report_is_a_function_before_and_after_its_room_is_imported() -> None:
    with pytest.raises(UserError, match="needs a run"):
        clove_ssl.report()
    importlib.import_module("clove_ssl.report.command")
    with pytest.raises(UserError, match="needs a run"):
        clove_ssl.report()


def test_verbs_give_what_they_have_made(tmp_path: Path) -> None:
    run = pretraining.pretrain(tiny_config(tmp_path / "run", steps=1)).run
    scores = clove_ssl.probe(run, data="scenes", probe=("spread",), size=64, test_images=4)
    assert "effective_rank" in scores[str(run)]
    assert clove_ssl.show("views", run, count=1) == run / "pictures" / "views.png"
    assert clove_ssl.report(run, pictures=False) == run / "report.html"
    assert clove_ssl.export(run, to="safetensors", out=tmp_path / "b.safetensors").is_file()


def test_a_run_from_python_ends_like_one_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = clove_ssl.pretrain(tiny_config(tmp_path / "run", steps=1))
    assert "Measuring and drawing what was learned" in capsys.readouterr().out
    assert {path.stem for path in (result.run / "pictures").iterdir()} >= {"features", "matches"}
    assert (result.run / "report.html").read_text().count('src="data:image/') == 3
    clove_ssl.resume(result.run)  # which has nothing to do
    assert "Measuring" not in capsys.readouterr().out
    clove_ssl.resume(result.run, steps=2)
    assert "Measuring and drawing what was learned" in capsys.readouterr().out
