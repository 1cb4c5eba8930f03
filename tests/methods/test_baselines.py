"""The two baselines from the command line: class labels, and no training at all."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from builders.files.small_sources import member, write_tar
from PIL import Image

from clove_ssl import cli, load_backbone
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.scenes import SceneSource
from clove_ssl.pictures import command as showing

SMALL = [
    *("--steps", "3", "--batch-size", "4", "--data.workers", "0", "--device", "cpu"),
    *("--method.views.global-size", "64", "--logging.every", "1", "--backbone.stage", "c3"),
]
PROBE = ["--size", "64", "--train-images", "20", "--test-images", "10", "--device", "cpu"]


def photo(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(SceneSource(12, size=64).scene(number).image).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of three photos, and two without a class."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(11):
        name = f"class{number % 3}/{number}.jpg" if number < 9 else f"{number}.jpg"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(photo(number))
    return folder


@pytest.fixture(scope="module")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "random"
    with pytest.MonkeyPatch.context() as patch:
        # It has no views whose size could be given, and large pictures take their time.
        patch.setattr(showing, "large_side", lambda trained: 64)
        assert cli.main(["pretrain", "random-r18", "--out", str(run), "--device", "cpu"]) == 0
    return run


@pytest.mark.usefixtures("unmeasured")
def test_supervised_training_takes_class_folders(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = ["pretrain", "supervised-r18-small", "--data", str(photos), "--out", str(run)]
    assert cli.main([*command, *SMALL]) == 0
    said = capsys.readouterr().out
    assert "9 images" in said
    assert "2 images have no class and are left out" in said
    assert "cross entropy over 3 classes" in said
    assert yaml.safe_load((run / "config.yaml").read_text())["method"]["classes"] == 3
    figures = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["accuracy"] <= 1 for line in figures)
    assert "(9 images, class labels)" in (run / "export/model_card.md").read_text()


def test_supervised_training_takes_shards_with_classes(tmp_path: Path) -> None:
    members = [member(f"{n}.jpg", photo(n)) for n in range(8)]
    members += [member(f"{n}.cls", str(n % 2).encode()) for n in range(6)]
    write_tar(tmp_path / "0.tar", *members)
    run = tmp_path / "run"
    command = ["pretrain", "supervised-r18-small", "--data", str(tmp_path / "*.tar")]
    assert cli.main([*command, "--out", str(run), *SMALL]) == 0
    assert "(6 images, class labels)" in (run / "export/model_card.md").read_text()


def test_the_labelled_photos_of_the_pack_are_found(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(data_folder / "pretrain/pretrain-000000.tar", tmp_path / "0.tar")
    command = ["pretrain", "supervised-r18-small", "--data", str(tmp_path / "0.tar")]
    assert cli.main([*command, "--out", str(tmp_path / "run"), *SMALL]) == 0
    said = capsys.readouterr().out
    assert "over 10 classes" in said
    assert "images have no class and are left out" in said


def test_photos_without_classes_are_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos / "class0", tmp_path / "photos")
    command = ["pretrain", "supervised-r18-small", "--data", str(tmp_path / "photos")]
    assert cli.main([*command, "--out", str(tmp_path / "run"), *SMALL]) == 2
    assert "one folder per class" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unmeasured")
def test_a_run_is_not_resumed_on_other_classes(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    run = str(tmp_path / "run")
    command = ["pretrain", "supervised-r18-small", "--data", str(tmp_path / "photos")]
    assert cli.main([*command, "--out", run, *SMALL]) == 0
    shutil.rmtree(tmp_path / "photos/class2")
    assert cli.main(["resume", run]) == 2
    assert "method.classes is 3, but the data has 2" in capsys.readouterr().err


def test_a_random_run_is_an_ordinary_finished_run(random_run: Path) -> None:
    for name in ("config.yaml", "provenance.json", "log.txt", "export/model_card.md"):
        assert (random_run / name).exists(), name
    assert (random_run / "metrics.jsonl").read_text() == ""
    assert not list((random_run / "checkpoints").iterdir())
    assert "with random weights" in (random_run / "export/model_card.md").read_text()
    report = (random_run / "report.html").read_text()
    assert "finished without training" in report
    assert "Nothing was trained" in report
    assert "No step has been logged yet" not in report


def test_a_random_run_holds_the_weights_of_its_seed(random_run: Path) -> None:
    torch.manual_seed(0)
    expected = build_backbone(BackboneConfig(name="resnet18")).state_dict()
    found = load_backbone(random_run).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_every_verb_takes_a_random_run(
    random_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load_backbone(random_run).state_dict()
    for verb in ("resume", "report", "doctor"):
        assert cli.main([verb, str(random_run)]) == 0
    assert "warning" not in capsys.readouterr().out
    after = load_backbone(random_run).state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    probes = ["--probe", "segmentation", "spread"]  # one that learns and one that does not
    assert cli.main(["probe", "random:resnet18", str(random_run), *PROBE, *probes]) == 0
    scores: dict[str, list[dict[str, Any]]] = {}
    beside = ("baseline", "gain", "gain_interval")  # what the run has, and random weights do not
    for probe in json.loads((random_run / "probes.json").read_text()):
        entry = {name: value for name, value in probe.items() if name not in beside}
        scores.setdefault(entry.pop("backbone"), []).append(entry)
    assert scores["random:resnet18"] == scores[str(random_run)]  # the same weights twice


@pytest.mark.parametrize("option", [["--steps", "3"], ["--backbone.weights", "x.safetensors"]])
def test_what_a_random_run_would_ignore_is_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pretrain", "random-r18", "--out", str(tmp_path / "run"), *option]) == 2
    assert "Leave both out" in capsys.readouterr().err
