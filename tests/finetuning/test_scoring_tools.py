"""A machine without the tools for scores trains and predicts, and says so before it begins."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders.runs.tiny_finetuning import tiny_finetuning

from clove_ssl import cli
from clove_ssl.errors import UserError
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.runs.directory import RunDirectory


@pytest.fixture
def without_tools(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    return monkeypatch


def test_predictions_are_scored_later(
    tmp_path: Path, without_tools: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(UserError, match=r"is trained.*pip install.*clove score") as found:
        finetuning.finetune(tiny_finetuning("voc-c4", run.path))
    told = " ".join("".join(capsys.readouterr()).split())
    assert "This run will end with predictions and without scores" in told.split("step 1/2")[0]
    assert str(run.predictions) in str(found.value)
    assert not run.scores.exists()
    without_tools.undo()
    assert cli.main(["score", str(run.path)]) == 0
    assert run.scores.is_file()


def test_what_needs_scores_on_the_way_is_refused_before_it_begins(
    tmp_path: Path, without_tools: pytest.MonkeyPatch
) -> None:
    config = tiny_finetuning("coco-fpn", tmp_path / "run")
    often = replace(config, evaluation=replace(config.evaluation, every=1))
    for each in (often, replace(config, runs=2)):
        with pytest.raises(UserError, match="leave out --runs and --evaluation.every"):
            finetuning.finetune(replace(each, out=tmp_path / str(each.runs)))
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("task", ["voc-semantic", "cityscapes-fpn"])
def test_tasks_with_rules_of_their_own_need_none(
    tmp_path: Path, task: str, without_tools: pytest.MonkeyPatch
) -> None:
    assert finetuning.finetune(tiny_finetuning(task, tmp_path / "run", iterations=1)).scores
