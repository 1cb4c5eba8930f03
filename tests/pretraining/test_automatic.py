"""A run for whoever names only images: chosen, explained, and as long as there is time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.files.photos import save_photos

import clove_ssl
from clove_ssl.config import files
from clove_ssl.config.pretraining import DataConfig, PretrainConfig
from clove_ssl.errors import UserError
from clove_ssl.pretraining.automatic import (
    Machine,
    Photos,
    choose_run,
    fit_minutes,
    suggest_run,
    usual_minutes,
)
from clove_ssl.pretraining.speed import Speed
from clove_ssl.runs.directory import RunDirectory

CPU = Machine(torch.device("cpu"), "a CPU with 2 cores", 0.0)
H200 = Machine(torch.device("cuda"), "one NVIDIA H200", 139.0)
SMALL_GPU = Machine(torch.device("cuda"), "one small GPU", 8.0)


@pytest.mark.parametrize(
    ("photos", "machine", "network", "views", "batch", "micro"),
    [
        (Photos(400, 160), CPU, "resnet18", [96, 48], 32, None),
        (Photos(400, 40), CPU, "resnet18", [64, 32], 32, None),
        (Photos(400, 300), H200, "resnet18", [224, 96], 256, None),
        (Photos(13_301, 160), H200, "resnet50", [160, 96], 256, None),
        (Photos(100_000, 500), SMALL_GPU, "resnet18", [224, 96], 256, 64),
        (Photos(21, 500), H200, "resnet18", [224, 96], 16, None),
    ],
)
def test_a_run_suits_its_photos_and_machine(
    photos: Photos, machine: Machine, network: str, views: list[int], batch: int, micro: int | None
) -> None:
    config, lines = choose_run(Path("run"), photos, machine)
    sizes = list(dict.fromkeys(spec.size for spec in config.method.view_specs()))
    assert config.method.name == "clove-plus"
    assert (config.backbone.name, sizes) == (network, views)
    assert (config.batch_size, config.micro_batch) == (batch, micro)
    assert [line.name for line in lines] == ["network", "views", "batch"]
    assert all(line.reason for line in lines)


def test_enlarged_photos_are_spoken_of() -> None:
    _, lines = choose_run(Path("run"), Photos(400, 40), CPU)
    assert "enlarged" in lines[1].reason


@pytest.mark.parametrize(
    ("minutes", "epochs", "steps", "words"),
    [(10, 30, None, "30 epochs"), (1, 3, None, "3 epochs"), (0.1, 1, 3, "one pass over all 400")],
)
def test_a_run_fills_the_time_it_is_given(
    minutes: float, epochs: int, steps: int | None, words: str
) -> None:
    config, _ = choose_run(Path("run"), Photos(400, 160), CPU)
    fitted, line = fit_minutes(config, 400, Speed(1 / 20), minutes)
    assert (fitted.epochs, fitted.steps) == (epochs, steps)
    assert words in f"{line.value} {line.reason}"
    seen = fitted.total_steps(400) * fitted.batch_size
    assert 0.75 * 60 * minutes * 20 <= seen <= 60 * minutes * 20
    warmup = fitted.optimizer.warmup_epochs * 400
    assert warmup == pytest.approx(0.05 * seen, rel=0.3)


def test_few_photos_are_not_repeated_for_ever() -> None:
    config, _ = choose_run(Path("run"), Photos(400, 160), H200)
    fitted, line = fit_minutes(config, 400, Speed(1 / 4000), 60)
    assert fitted.epochs == 800
    assert "would add little" in line.reason


@pytest.mark.parametrize("speed", [Speed(1 / 20), Speed(3.0)])
def test_a_run_without_a_time_is_long_enough_to_learn(speed: Speed) -> None:
    config, _ = choose_run(Path("run"), Photos(400, 160), CPU)
    minutes = usual_minutes(config, speed, CPU.device)
    assert minutes >= 8
    fitted, line = fit_minutes(config, 400, speed, minutes)
    assert fitted.total_steps(400) >= 100
    assert "about" in line.value


@pytest.mark.usefixtures("unmeasured")
def test_one_call_chooses_explains_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine would say first that it is being measured.
    monkeypatch.setattr("clove_ssl.console._FIRST_WORD", 600.0)
    save_photos(tmp_path / "photos", 4)
    result = clove_ssl.pretrain(
        data=tmp_path / "photos",
        out=tmp_path / "run",
        steps=1,
        device="cpu",
        backbone={"name": "timm:test_resnet"},
        data_options={"workers": 0},
    )
    assert result.finished
    said = capsys.readouterr().out
    assert said.startswith("Chosen for 4 photos and a CPU")
    assert "1 step, about" in said
    assert "timm:test_resnet  (as asked)" in said
    config = files.load(PretrainConfig, RunDirectory(tmp_path / "run").config)
    assert (config.batch_size, config.steps, config.data.workers) == (4, 1, 0)


def test_a_run_of_several_processes_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="Name a recipe"):
        suggest_run(tmp_path, DataConfig(source=str(tmp_path)))


def test_a_single_photo_is_refused(tmp_path: Path) -> None:
    save_photos(tmp_path, 1)
    with pytest.raises(UserError, match="1 image, too few. Expected at least two"):
        suggest_run(tmp_path / "run", DataConfig(source=str(tmp_path)), "cpu")


def test_a_config_goes_with_no_other_option(tmp_path: Path) -> None:
    config, _ = choose_run(tmp_path / "run", Photos(400, 160), CPU)
    with pytest.raises(UserError, match="Change the config"):
        clove_ssl.pretrain(replace(config, device="cpu"), epochs=3)
    with pytest.raises(UserError, match="needs a config, or data and out"):
        clove_ssl.pretrain(data=tmp_path)
