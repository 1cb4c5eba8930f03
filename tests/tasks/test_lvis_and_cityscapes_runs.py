"""LVIS and Cityscapes: runs on files in their own formats, and mistakes in these."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.labels.cityscapes_cases import official_table
from builders.labels.lvis_cases import official_scores
from builders.runs.interruptions import assert_same, crash_after, figures, final_state
from builders.runs.tiny_finetuning import tiny_finetuning

from clove_ssl import cli
from clove_ssl.config.finetuning import FinetuneConfig
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.cityscapes.scenes import (
    cityscapes_scene_labels,
    read_cityscapes_scenes,
    write_cityscapes_scenes,
)
from clove_ssl.tasks.lvis.config import LVISConfig
from clove_ssl.tasks.lvis.scenes import write_lvis_scenes
from clove_ssl.tasks.predictions import read_detections
from clove_ssl.tasks.scoring.scores import read_scores

COMMAND = ["--backbone", "random", "--architecture", "resnet18", "--device", "cpu"]


def with_repeats(config: FinetuneConfig) -> FinetuneConfig:
    assert isinstance(config.task, LVISConfig)
    return replace(config, task=replace(config.task, repeat_threshold=1.0))


def test_a_crashed_run_with_repeated_images_ends_like_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"iterations": 5, "checkpoint_every": 1}
    config = with_repeats(tiny_finetuning("lvis-fpn", tmp_path / "whole", **changes))
    finetuning.finetune(config)
    notes = json.loads(RunDirectory(config.out).self_check.read_text())["notes"]
    assert any("times in an epoch" in note for note in notes)
    crash_after(3, monkeypatch, replace(config, out=tmp_path / "torn"), finetuning.finetune)
    assert cli.main(["resume", str(tmp_path / "torn")]) == 0
    assert_same(final_state(tmp_path / "torn"), final_state(tmp_path / "whole"))
    assert figures(tmp_path / "torn") == figures(tmp_path / "whole")


def test_rare_classes_have_pictures_of_their_own(tmp_path: Path) -> None:
    result = finetuning.finetune(tiny_finetuning("lvis-fpn", tmp_path / "run"))
    assert {"mask_APr", "mask_APc", "mask_APf"} <= result.scores.keys()
    run = RunDirectory(result.run)
    assert {path.name for path in run.pictures.glob("*.png")} == {"predictions_1.png", "rare_1.png"}
    assert "norms of a random backbone are frozen" in run.log.read_text()


def test_lvis_trains_and_scores_on_real_labels(tmp_path: Path, data_folder: Path) -> None:
    config = tiny_finetuning("lvis-v0.5-fpn", tmp_path / "run")
    data = replace(config.data, root=data_folder / "coco")
    result = finetuning.finetune(replace(config, data=data))
    run = RunDirectory(result.run)
    facts = json.loads(run.self_check.read_text())["facts"]
    assert facts["training"].endswith("1230 classes")
    records = read_detections(run.predictions / "detections.json").records
    assert records
    pytest.importorskip("lvis")
    path = data_folder / "coco/annotations/lvis_v0.5_test.json"
    for kind, table in zip(("box", "mask"), read_scores(run.scores).tables, strict=True):
        expected, _ = official_scores(path, records, kind)
        mine = {name: -1 if np.isnan(value) else value for name, value in table.summary.items()}
        assert mine == pytest.approx(expected, abs=1e-6)


def test_results_of_a_run_score_the_same_by_the_official_tool(tmp_path: Path) -> None:
    config = tiny_finetuning("cityscapes-fpn", tmp_path / "run")
    finetuning.finetune(config)
    run = RunDirectory(config.out)
    dataset = read_cityscapes_scenes(run.scenes, "test")
    files = [dataset.truth[sample.identifier] for sample in dataset.samples]
    expected = official_table(files, run.predictions / "cityscapes")
    (table,) = read_scores(run.scores).tables
    for row, theirs in zip(table.by_class.values(), expected, strict=True):
        assert row["AP"] == pytest.approx(theirs.mean(), abs=1e-6, nan_ok=True)
        assert row["AP50"] == pytest.approx(theirs[0], abs=1e-6, nan_ok=True)
    assert table.summary["AP"] == pytest.approx(np.nanmean(expected), abs=1e-6)
    assert list(run.pictures.glob("predictions_*.png"))


def test_both_kinds_of_label_files_train_the_same(tmp_path: Path) -> None:
    config = tiny_finetuning("cityscapes-fpn", tmp_path / "polygons")
    finetuning.finetune(config)
    other = replace(config.task, labels="instances")
    finetuning.finetune(replace(config, task=other, out=tmp_path / "instances"))
    assert_same(final_state(tmp_path / "instances"), final_state(tmp_path / "polygons"))


def message_of(task: str, data: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """What a run says that ends with a mistake."""
    out = data.parent / "out"
    assert (
        cli.main(["finetune", task, "--data", str(data), "--out", str(out), *COMMAND, *more]) == 2
    )
    assert not out.exists()
    return " ".join(capsys.readouterr().err.split())


def without_negatives(content: dict[str, Any]) -> None:
    del content["images"][1]["neg_category_ids"]


def unknown_negative(content: dict[str, Any]) -> None:
    content["images"][1]["not_exhaustive_category_ids"] = [777]


def unknown_category(content: dict[str, Any]) -> None:
    content["annotations"][0]["category_id"] = 777


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (without_negatives, ("Image 2 of", "neg_category_ids", "coco-fpn")),
        (unknown_negative, ("Image 2 of", "777", "no category")),
        (unknown_category, ("Annotation 1 of", "category_id 777")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_of_lvis_files_are_named_before_training(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[dict[str, Any]], None],
    parts: tuple[str, ...],
) -> None:
    root = tmp_path / "lvis"
    for split in ("train", "test"):
        write_lvis_scenes(root, split, count=3, size=48)
    path = root / "annotations/lvis_v1_train.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    message = message_of("lvis-fpn", root, capsys)
    assert all(part in message for part in parts), message


def test_a_file_of_coco_is_no_file_of_lvis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lvis"
    write_lvis_scenes(root, "train", count=2, size=48)
    assert "lvis_v1_val.json" in message_of("lvis-fpn", root, capsys)
    assert "no lists" in message_of("lvis-fpn", root, capsys, "--data.train-lists", "2012:train")


def test_faults_of_cityscapes_files_are_named_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "streets"
    for split in ("train", "test"):
        write_cityscapes_scenes(root, split, count=3, size=48)
    path = cityscapes_scene_labels(root, "train", 1)
    good = path.read_text()
    path.write_text(good.replace('"imgWidth": 48', '"imgWidth": 64'))
    message = message_of("cityscapes-fpn", root, capsys)
    assert "48 x 48 pixels, but its annotation says 64 x 48" in message
    content = json.loads(good)
    content["objects"][1]["polygon"][0] = [900, 3]
    path.write_text(json.dumps(content))
    message = message_of("cityscapes-fpn", root, capsys)
    assert f"Object 1 of {path}" in message
    assert "leaves its image" in message
    path.unlink()
    message = message_of("cityscapes-fpn", root, capsys)
    assert str(path) in message
    assert "no label file" in message
    lists = ("--data.train-lists", "val")
    assert "Give --data FOLDER alone" in message_of("cityscapes-fpn", root, capsys, *lists)


def test_a_detector_without_masks_is_refused_for_cityscapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its results could not be written once it was trained."""
    root = tmp_path / "streets"
    for split in ("train", "test"):
        write_cityscapes_scenes(root, split, count=2, size=48)
    message = message_of("cityscapes-fpn", root, capsys, "--task.detector.no-masks")
    assert "is scored by masks, but its detector would learn boxes" in message
