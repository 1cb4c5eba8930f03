"""Probes of a run on its own images, beside random weights, with a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.runs.tiny_runs import tiny_config
from PIL import Image

from clove_ssl import cli
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.config.probing import ProbeConfig
from clove_ssl.probes.own_images import random_config, with_baseline, with_defaults
from clove_ssl.probes.scores import gain, share
from clove_ssl.report.page import write_report
from clove_ssl.report.probe_bars import bar_charts
from clove_ssl.report.verdict import judge_entry, probes_of
from clove_ssl.runs import directory
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.weights.safetensors_file import save_backbone


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run on a folder of noise that ended with the weights of another seed."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(6):
        Image.effect_noise((80, 72), 60 + number).convert("RGB").save(photos / f"{number}.png")
    made = directory.create(tmp_path / "run")
    config = tiny_config(made.path, data=DataConfig(source=str(photos), workers=0))
    files.save(config, made.config)
    torch.manual_seed(7)
    backbone = build_backbone(config.backbone)
    save_backbone(backbone, made.backbone, {"method": "clove", "config_hash": "0"})
    return made


def test_a_run_is_probed_on_its_own_images_beside_random_weights(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["probe", str(run.path), "--device", "cpu"]) == 0
    entries = json.loads(run.probes.read_text())
    names = {entry["backbone"] for entry in entries}
    assert names == {str(run.path), "random:timm:test_resnet"}
    assert {entry["data"] for entry in entries} == {str(run.path.parent / "photos")}
    assert {entry["size"] for entry in entries} == {64}  # of its large views
    own = next(entry for entry in entries if entry["figure"] == "correspondence")
    assert own["baseline"] == "random:timm:test_resnet"
    assert own["gain_interval"][0] <= own["gain"] <= own["gain_interval"][1]
    said = " ".join(capsys.readouterr().out.split())
    assert "random weights do so" in said
    assert "than random weights" in run.report.read_text()


CORRESPONDENCE = ["--probe", "correspondence", "--device", "cpu", "--size", "64"]


def test_scores_of_other_weights_are_not_taken_for_those_of_a_run(
    run: RunDirectory, tmp_path: Path
) -> None:
    other = directory.create(tmp_path / "elsewhere" / run.path.name)  # a folder of the same name
    files.save(files.load(PretrainConfig, run.config), other.config)
    save_other_weights(other)
    probed = [str(other.path), str(other.backbone), str(run.path), "random:timm:test_resnet"]
    assert cli.main(["probe", *probed, *CORRESPONDENCE]) == 0
    (entry, _), *more = probes_of(run)
    assert not more
    assert entry["backbone"] == str(run.path)
    assert {entry["backbone"] for entry, _ in probes_of(other)} == set(probed[:2])
    moved = RunDirectory(run.path.rename(tmp_path / "moved"))
    assert [entry for entry, _ in probes_of(moved)] == [entry]


def test_scores_from_before_a_run_went_on_are_marked(run: RunDirectory, tmp_path: Path) -> None:
    photos = str(tmp_path / "photos")
    assert cli.main(["probe", str(run.path), "--data", photos, *CORRESPONDENCE]) == 0
    said = "weights that the run had before it went on"
    assert said not in run.report.read_text()
    assert len(probes_of(run)) == 1
    save_other_weights(run)
    write_report(run)
    assert said in run.report.read_text()
    assert probes_of(run) == []
    assert cli.main(["probe", str(run.path), "--data", photos, *CORRESPONDENCE]) == 0
    assert said not in run.report.read_text()


def test_scores_on_other_images_of_the_same_data_are_not_compared(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = ["--data", "photos", *CORRESPONDENCE]
    random = "random:timm:test_resnet"
    assert cli.main(["probe", str(run.path), random, *usual, "--test-images", "3"]) == 0
    assert cli.main(["probe", str(run.path), str(run.backbone), *usual]) == 0
    entries = json.loads(run.probes.read_text())
    assert {entry["data"] for entry in entries} == {str(tmp_path / "photos")}
    few, many = [entry for entry in entries if entry["backbone"] == str(run.path)]
    assert judge_entry(few, entries) is not None
    assert judge_entry(many, entries) is None  # random weights saw three of the six images
    assert [len(chart.bars) for chart in bar_charts(entries)] == [2, 2]
    assert "at 64 px, up to 3 test images" in run.report.read_text()
    assert cli.main(["probe", str(run.path), random, *usual]) == 0
    assert judge_entry(many, json.loads(run.probes.read_text())) is not None


def save_other_weights(run: RunDirectory) -> None:
    """The backbone of another seed as what a run exports."""
    torch.manual_seed(8)
    backbone = build_backbone(files.load(PretrainConfig, run.config).backbone)
    save_backbone(backbone, run.backbone, {"method": "clove", "config_hash": "0"})


def test_scores_of_several_commands_come_together_in_a_file(
    run: RunDirectory, tmp_path: Path
) -> None:
    out = tmp_path / "scores.json"
    photos = str(tmp_path / "photos")
    usual = ["--data", photos, "--size", "64", "--device", "cpu", "--out", str(out)]
    file = str(run.backbone)
    for probed in ([file], ["random:timm:test_resnet"], [file]):
        assert cli.main(["probe", *probed, *usual, "--probe", "correspondence"]) == 0
    entries = json.loads(out.read_text())
    assert [entry["backbone"] for entry in entries] == ["random:timm:test_resnet", file]
    assert not run.probes.exists()  # a file of weights is no run


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scores.csv", "unknown ending"),
        ("nowhere/scores.json", "does not exist"),
        ("labels.json", "Give --out another file"),
        ("folder.json", "is a folder. Name a file, such as --out "),
    ],
)
def test_no_file_of_another_kind_is_written_over(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.json"
    labels.write_text('{"images": []}')
    (tmp_path / "folder.json").mkdir()
    assert cli.main(["probe", "random:resnet18", "--out", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err
    assert labels.read_text() == '{"images": []}'


def test_a_run_that_began_with_trained_weights_is_not_praised_for_them() -> None:
    alike = {"figure": "correspondence", "data": "photos", "seed": 0, "is_share": True}
    floor = alike | {"backbone": "random:resnet18", "value": 0.3}
    trained = alike | {"backbone": "runs/a", "value": 0.5}
    learned = judge_entry(trained, [floor])
    started = judge_entry(trained | {"started_from": "/w.pth"}, [floor])
    assert learned is not None
    assert started is not None
    assert (learned.headline, started.headline) == ("It has learned", "Better than random weights")
    assert started.next_step.endswith("clove probe runs/a /w.pth")


def test_what_is_named_is_left_as_it_is(run: RunDirectory) -> None:
    both = ProbeConfig(backbones=(str(run.path), "random:resnet18"), data="scenes", size=96)
    assert with_baseline(both) == both
    assert with_defaults(both) == (both, None)
    file = ProbeConfig(backbones=("some/backbone.safetensors",))
    assert with_baseline(file) == file
    assert with_defaults(file)[0].data == "scenes"


def test_random_weights_are_built_like_the_run_beside_them(run: RunDirectory) -> None:
    assert random_config("random:timm:test_resnet", [str(run.path)]).stage == "c4"
    assert random_config("random:resnet18", [str(run.path)]).name == "resnet18"


def test_images_that_are_gone_are_named_with_a_remedy(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = run.path.parent / "photos"
    photos.rename(run.path.parent / "elsewhere")
    assert cli.main(["probe", str(run.path)]) == 2
    assert f"was trained on {photos}, which cannot be read" in capsys.readouterr().err


def test_a_difference_on_equal_images_is_surer_than_two_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    judged = torch.full((40,), 100.0)
    right = torch.randint(10, 90, (40,), generator=generator).float()  # easy and hard images
    worse, better = share(right, judged, seed=0), share(right + 5, judged, seed=0)
    assert worse.interval is not None
    assert worse.interval[1] > better.value  # the intervals overlap by far
    ahead = gain(better, worse)
    assert ahead.interval is not None
    assert ahead.interval == pytest.approx((0.05, 0.05))
