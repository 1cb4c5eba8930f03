"""The commands of the README, from a folder of images to a backbone somebody can use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from builders.runs.tiny_finetuning import tiny_finetuning
from PIL import Image

from clove_ssl import UserError, cli, load_backbone, load_finetuned
from clove_ssl.config import files
from clove_ssl.data.scenes import SceneSource

SMALL = [
    *("--steps", "3", "--batch-size", "8", "--data.workers", "0", "--device", "cpu"),
    *("--method.views.global-size", "64", "--logging.every", "1"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    scenes = SceneSource(12, size=80)
    for number in range(len(scenes)):
        path = folder / f"album{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(scenes.scene(number).image).save(path)
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    assert (
        cli.main(["pretrain", "clove-demo", "--data", str(photos), "--out", str(out), *SMALL]) == 0
    )
    return out


def test_a_run_leaves_everything_it_promises(run: Path, photos: Path) -> None:
    for name in (
        "config.yaml",
        "provenance.json",
        "metrics.jsonl",
        "log.txt",
        "checkpoints",
        "export/backbone.safetensors",
        "export/model_card.md",
        "report.html",
    ):
        assert (run / name).exists(), name
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["source"] == str(photos)
    assert json.loads((run / "provenance.json").read_text())["starts"][0]["torch"]
    assert "12 images" in (run / "export/model_card.md").read_text()


def test_three_commands_lead_from_photos_to_drawn_predictions(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    """Pre-training is the first of them; the second learns from built-in scenes."""
    detector, drawn = tmp_path / "detector", tmp_path / "predicted"
    config = tmp_path / "tiny.yaml"
    tiny = replace(tiny_finetuning("coco-fpn", detector), backbone=str(run), architecture=None)
    config.write_text(files.to_yaml(tiny))
    assert cli.main(["finetune", "--config", str(config), "--out", str(detector)]) == 0
    assert cli.main(["predict", str(detector), str(photos), "--out", str(drawn)]) == 0
    pictures = {path.relative_to(drawn / "pictures") for path in drawn.rglob("*.jpg")}
    assert pictures == {path.relative_to(photos) for path in photos.rglob("*.jpg")}
    assert len(json.loads((drawn / "predictions.json").read_text())["images"]) == 12


def test_what_only_a_fine_tuned_run_has_is_told(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["score", str(run)],
        ["predict", str(run), str(photos), "--out", str(tmp_path / "out")],
        ["evaluate", str(run)],
    ):
        assert cli.main(arguments) == 2
        message = capsys.readouterr().err
        assert "is a pre-training run" in message
        assert f"clove finetune detect --backbone {run}" in message
    with pytest.raises(UserError, match="is a pre-training run"):
        load_finetuned(run)


def test_the_backbone_loads_in_torchvision_by_its_own_names(run: Path) -> None:
    from safetensors.torch import load_file
    from torchvision.models import resnet18

    network = resnet18()
    missing, unexpected = network.load_state_dict(
        load_file(run / "export/backbone.safetensors"), strict=False
    )
    assert not unexpected
    assert {name.split(".")[0] for name in missing} == {"fc"}
    ours = load_backbone(run).eval()
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        theirs = network.eval().layer1(
            network.maxpool(network.relu(network.bn1(network.conv1(image))))
        )
        torch.testing.assert_close(ours(image)["c2"], theirs)


def test_a_run_repeats_itself_from_its_own_config(run: Path, tmp_path: Path) -> None:
    arguments = ["--config", str(run / "config.yaml"), "--out", str(tmp_path / "again")]
    assert cli.main(["pretrain", *arguments]) == 0
    losses = [
        [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (run, tmp_path / "again")
    ]
    assert losses[0] == losses[1]


def test_resume_report_and_doctor_accept_a_finished_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("resume", "report", "doctor"):
        assert cli.main([verb, str(run)]) == 0
    assert "report.html" in capsys.readouterr().out


def test_the_probe_compares_random_weights_with_the_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--data", "scenes", "--size", "64", "--train-images", "20", "--test-images", "10"]
    assert cli.main(["probe", "random:resnet18", str(run), *small, "--device", "cpu"]) == 0
    assert "mIoU" in capsys.readouterr().out
    recorded = json.loads((run / "probes.json").read_text())
    probes = [probe for probe in recorded if probe["data"] == "scenes"]  # not its own photos
    assert {probe["backbone"] for probe in probes} == {"random:resnet18", str(run)}
    assert all(probe["stages"] == ["c4"] for probe in probes)  # what the demo trains
    figures = {probe["figure"] for probe in probes}
    assert {"correspondence", "uniformity", "segmentation", "retrieval", "keypoints"} <= figures
    assert len(probes) == 2 * len(figures)
    assert "random:resnet18" in (run / "report.html").read_text()
    assert cli.main(["probe", "random:resnet18", str(run), *small, "--device", "cpu"]) == 0
    assert json.loads((run / "probes.json").read_text()) == recorded  # not added twice


def test_an_existing_run_is_not_overwritten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "metrics.jsonl").read_bytes()
    assert cli.main(["pretrain", "clove-demo", "--out", str(run), *SMALL]) == 2
    assert f"clove resume {run}" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before
