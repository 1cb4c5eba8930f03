"""A task that brings its own folder alone: every verb takes it as it takes those of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clove_ssl import cli
from clove_ssl.registry import TASKS

SMALL = ["--data.scenes-train=4", "--data.scenes-test=2", "--data.scenes-size=64", "--workers=0"]
QUICK = ["--architecture=resnet18", "--device=cpu", "--evaluation.precise-norm-batches=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A fine-tuning of the task of a plug-in, which stays installed for the tests of this file."""
    value = "builders.tasks.brightness:BrightnessConfig"
    point = EntryPoint(name="brightness", value=value, group=TASKS.group)
    out = str(tmp_path_factory.mktemp("added") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TASKS, "_plugins", lambda: (point,))
        command = ["finetune", "brightness", "--backbone=random", f"--out={out}", *SMALL, *QUICK]
        assert cli.main(command) == 0
        yield out


def test_every_verb_knows_a_task_that_was_added(
    run: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["list", "tasks"]) == 0
    assert "Whether an image is bright" in capsys.readouterr().out
    for verb in ("score", "report", "resume", "doctor"):
        assert cli.main([verb, run]) == 0, verb
    assert "brightness" in (Path(run) / "report.html").read_text()
    other = tmp_path / "other"
    scored = ["evaluate", run, "--data", f"{run}/scenes", "--out", str(other), "--workers", "0"]
    assert cli.main(scored) == 0
    (table,) = json.loads((other / "scores.json").read_text())["tables"]
    assert table["summary"].keys() == {"accuracy"}


def test_what_a_task_leaves_out_is_told_in_a_sentence(
    run: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    photo = next((Path(run) / "scenes" / "test").iterdir())
    assert cli.main(["predict", run, str(photo), "--out", str(tmp_path / "found")]) == 2
    assert "does not look at single images" in capsys.readouterr().err
