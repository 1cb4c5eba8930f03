"""Weights of whole runs: finished and interrupted, student and teacher, with and without heads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.runs.tiny_runs import RESNET18, tiny_config
from safetensors.torch import load_file

from clove_ssl import cli
from clove_ssl.pretraining.run import pretrain
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.runs.state import read_state
from clove_ssl.weights.load import load_backbone, read_backbone
from clove_ssl.weights.safetensors_file import read_backbone_file


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CLoVE whose student and teacher differ."""
    run = tmp_path_factory.mktemp("runs") / "clove"
    pretrain(tiny_config(run, backbone=RESNET18))
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    copy = Path(shutil.copytree(finished, tmp_path / "clove"))
    entry = {"data": "scenes", "title": "mIoU"}
    mine, others = {"backbone": str(copy), "value": 0.4321}, {"backbone": "other", "value": 0.9}
    (copy / "probes.json").write_text(json.dumps([entry | mine, entry | others]))
    return copy


def learner(run: Path) -> dict[str, torch.Tensor]:
    newest = sorted(run.glob("checkpoints/*.pt"))[-1]
    state: dict[str, torch.Tensor] = torch.load(newest, weights_only=True)["learner"]
    return state


def first_convolution(path: Path) -> torch.Tensor:
    return load_backbone(path).body.conv1.weight


def test_both_branches_of_a_run_are_exported_with_a_card(run: Path) -> None:
    assert cli.main(["export", str(run), "--to", "torchvision", "--licence", "CC0"]) == 0
    assert cli.main(["export", str(run), "--to", "torchvision", "--branch", "teacher"]) == 0
    student = torch.load(run / "export/backbone.torchvision.pth", weights_only=True)
    teacher = torch.load(run / "export/backbone-teacher.torchvision.pth", weights_only=True)
    state = learner(run)
    assert torch.equal(student["conv1.weight"], state["encoder.backbone.body.conv1.weight"])
    assert torch.equal(teacher["conv1.weight"], state["teacher.module.backbone.body.conv1.weight"])
    assert not torch.equal(student["conv1.weight"], teacher["conv1.weight"])
    card = (run / "export/backbone.torchvision.pth.md").read_text()
    for fact in ("clove, student", "scenes (20 images", "48 in 6", "effective_rank", "CC0"):
        assert fact in card
    assert "| mIoU on scenes | 0.4321 |" in card
    assert "0.4321" not in (run / "export/backbone-teacher.torchvision.pth.md").read_text()
    assert 'torch.load("backbone.torchvision.pth", weights_only=True)' in card
    assert "Intended use" in card


def test_a_probe_at_the_end_of_a_run_leaves_its_health_on_the_card(run: Path) -> None:
    probed = {"step": 6, "epoch": 2.4, "probe_knn": 0.25, "probe_seconds": 1.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(probed) + "\n")
    assert cli.main(["export", str(run), "--to", "torchvision"]) == 0
    card = (run / "export/backbone.torchvision.pth.md").read_text()
    assert "## Health" in card
    assert "| effective_rank |" in card
    assert "| knn | 0.25 |" in card


def test_heads_come_as_a_second_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "out.safetensors"
    arguments = ["export", str(run), "--to", "safetensors", "--projector", "--out", str(out)]
    assert cli.main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "checked with clove-ssl (features differ by 0.0e+00 at most)" in said
    heads = load_file(run.parent / "out.projector.safetensors")
    state = learner(run)
    assert all(name.startswith("projector.") for name in heads)
    assert all(torch.equal(heads[name], state[f"encoder.{name}"]) for name in heads)
    assert read_backbone_file(out)[1]["branch"] == "student"
    assert cli.main(arguments) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_graph_with_heads_gives_embeddings(run: Path) -> None:
    out = run.parent / "embedding.pt2"
    options = ["--to", "torch-export", "--projector", "--out", str(out)]
    assert cli.main(["export", str(run), *options]) == 0
    with torch.no_grad():
        (embedding,) = torch.export.load(out).module()(torch.zeros(1, 3, 64, 96))
    assert embedding.shape == (1, 16, 4, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "detectron2", "--projector"], "--projector cannot go to detectron2"),
        (["--to", "timm", "--stage", "c3"], "--stage c3 is for graphs"),
        (["--to", "onnx", "--stage", "c3", "--projector"], "exclude each other"),
        (["--to", "pdf"], "pdf"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.rglob("*"))
    try:
        code: object = cli.main(["export", str(run), *arguments])
    except SystemExit as stop:
        code = stop.code
    written = capsys.readouterr()
    assert code == 2
    assert message in " ".join((written.err + written.out).split())
    assert sorted(run.rglob("*")) == before


def interrupt(run: Path) -> None:
    """Leave what an interrupted run leaves."""
    shutil.rmtree(run / "export")
    (run / "export").mkdir()


def test_an_unfinished_run_is_read_from_its_newest_intact_checkpoint(run: Path) -> None:
    interrupt(run)
    state = learner(run)
    backbone, report = read_backbone(run)
    assert (backbone.name, backbone.stage) == ("resnet18", "c4")
    assert (report.layout, report.branch) == ("clove-ssl", "student")
    assert report.dropped["teacher"] == report.matched + 20 + len(
        [name for name in state if name.startswith("teacher.module.projector")]
    )
    expected = state["encoder.backbone.body.conv1.weight"]
    assert torch.equal(backbone.body.conv1.weight, expected)
    newest = sorted(run.glob("checkpoints/*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    assert not torch.equal(first_convolution(run), expected)


def test_an_export_does_not_make_an_unfinished_run_look_finished(run: Path) -> None:
    interrupt(run)
    assert cli.main(["export", str(run), "--to", "safetensors"]) == 0
    written = [path.name for path in (run / "export").iterdir()]
    assert sorted(written) == ["backbone-step-6.safetensors", "backbone-step-6.safetensors.md"]
    assert read_state(RunDirectory(run), tiny_config(run), []).status == "interrupted"


def test_a_checkpoint_alone_asks_for_the_branch(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = sorted(run.glob("checkpoints/*.pt"))[-1]
    state = learner(run)
    assert torch.equal(first_convolution(newest), state["encoder.backbone.body.conv1.weight"])
    alone = Path(shutil.copy(newest, run.parent / "alone.pt"))
    out = run.parent / "alone.safetensors"
    assert cli.main(["import", str(alone), "--out", str(out)]) == 2
    assert "--branch student" in capsys.readouterr().err
    assert cli.main(["import", str(alone), "--branch", "teacher", "--out", str(out)]) == 0
    assert torch.equal(first_convolution(out), state["teacher.module.backbone.body.conv1.weight"])


def test_a_checkpoint_is_of_its_run_from_any_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = sorted(run.glob("checkpoints/*.pt"))[-1]
    monkeypatch.chdir(newest.parent)
    expected = learner(run)["encoder.backbone.body.conv1.weight"]
    assert torch.equal(first_convolution(Path(newest.name)), expected)


def test_a_run_starts_from_an_unfinished_one(run: Path) -> None:
    interrupt(run)
    config = tiny_config(run.parent / "second", steps=1, backbone=RESNET18)
    result = pretrain(replace(config, backbone=replace(config.backbone, weights=run)))
    assert result.finished


def test_a_folder_where_one_stands_is_exported_beside_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hub"
    folder.mkdir()
    shutil.copy(run / "export/backbone.safetensors", folder / "model.safetensors")
    monkeypatch.chdir(folder)
    assert cli.main(["export", ".", "--to", "torchvision"]) == 0
    assert (tmp_path / "hub.torchvision.pth").is_file()


def test_a_file_is_exported_without_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = run / "export/backbone.safetensors"
    out = run.parent / "from_file.pkl"
    assert cli.main(["export", str(source), "--to", "detectron2", "--out", str(out)]) == 0
    assert "Data | not recorded" in (run.parent / "from_file.pkl.md").read_text()
    assert torch.equal(first_convolution(out), first_convolution(source))
    assert cli.main(["export", str(source), "--to", "safetensors"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert cli.main(["export", str(source), "--to", "hub", "--projector"]) == 2
    assert "--projector needs a run" in capsys.readouterr().err
    assert cli.main(["export", str(run.parent / "none"), "--to", "hub"]) == 2
    assert "does not exist" in capsys.readouterr().err
