"""DensePose from built-in figures to scores, interrupted and not, and with two processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders.files.surface_files import write_surface_files
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.tasks.tiny_densepose import scenes, tiny_densepose_run

from clove_ssl import cli, load_finetuned
from clove_ssl.config.finetuning import LabelledDataConfig, protocol
from clove_ssl.errors import UserError
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.runs.directory import RunDirectory


def test_figures_are_learned_predicted_drawn_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = finetuning.finetune(tiny_densepose_run(tmp_path / "run"))
    run = RunDirectory(result.run)
    assert result.finished
    assert next(iter(result.scores)) == "gpsm_AP"
    assert {"gps_AP", "segm_AP", "box_AP"} <= result.scores.keys()
    assert list(run.pictures.glob("*.png"))
    facts = json.loads(run.self_check.read_text())["facts"]
    assert facts["detector"] == "fpn with boxes, surface"
    assert facts["surface losses"] == "5 person, 1 part, 0.01 U and V, summed over 2 images"
    before = run.scores.read_text()
    run.scores.unlink()
    capsys.readouterr()
    assert cli.main(["score", str(run.path)]) == 0
    assert run.scores.read_text() == before
    assert "GPS" in capsys.readouterr().out.upper()
    image = next(run.scenes.rglob("*test*/*.[jp][pn]g"))
    found = load_finetuned(run.path).predict(image)
    assert found.surfaces[0].shape[0] == 3
    assert cli.main(["export", str(run.path), "--to", "detectron2", "--heads"]) == 0


def test_a_crashed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"iterations": 3, "checkpoint_every": 1}
    finetuning.finetune(tiny_densepose_run(tmp_path / "whole", **changes))
    torn = tiny_densepose_run(tmp_path / "torn", **changes)
    crash_after(1, monkeypatch, torn, finetuning.finetune)
    assert cli.main(["resume", str(tmp_path / "torn")]) == 0
    assert_same(final_state(tmp_path / "torn"), final_state(tmp_path / "whole"))
    assert figures(tmp_path / "torn") == figures(tmp_path / "whole")


def test_files_of_a_user_are_learned_from_with_a_surface_of_files(tmp_path: Path) -> None:
    scenes(tmp_path / "data")
    labels = tmp_path / "data/annotations/densepose_train.json"
    data = LabelledDataConfig(
        train_annotations=labels,
        train_images=tmp_path / "data/images/train",
        test_annotations=labels,
        test_images=tmp_path / "data/images/train",
        workers=0,
    )
    config = replace(tiny_densepose_run(tmp_path / "run"), data=data)
    with pytest.raises(UserError, match="--task.surface"):
        finetuning.finetune(config)
    assert not (tmp_path / "run").exists()
    write_surface_files(tmp_path / "body")
    config = replace(config, task=replace(config.task, surface=tmp_path / "body"))
    assert finetuning.finetune(config).finished


def test_the_protocol_is_the_published_one(tmp_path: Path) -> None:
    config = protocol("coco-densepose", tmp_path, "random")
    solver = config.solver
    assert (solver.iterations, solver.steps) == (130_000, (100_000, 120_000))
    assert (solver.lr, solver.batch_size, solver.warmup_factor) == (0.01, 16, 0.1)
    assert config.task.train_sides == (640, 672, 704, 736, 768, 800)
    detector = config.task.detector
    assert (detector.box.pooling, detector.frozen_stages) == ("legacy", 0)
    assert (detector.backbone_norm, detector.neck_norm, detector.head_norm) == (
        "batch",
        "batch",
        "none",
    )
    head = config.task.surface_head
    assert (head.convs, head.width, head.pooled_side, head.overlap_above) == (8, 512, 28, 0.7)
