"""``clove evaluate``: the test part of other data, in the layout of the task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from builders.tasks.exported_detectors import write_tiny_run

from clove_ssl import cli, load_finetuned
from clove_ssl.data.labels.pixels import VOC_CLASSES
from clove_ssl.data.scenes import SCENE_CLASSES
from clove_ssl.tasks.detection.scenes import write_coco_scenes, write_voc_scenes
from clove_ssl.tasks.predictions import read_detections, read_label_maps


def test_a_detector_is_scored_on_other_images(tmp_path: Path) -> None:
    other = tmp_path / "other"
    for split in ("train", "test"):
        write_coco_scenes(other, split, count=2, size=64)  # type: ignore[arg-type]
    run, _ = write_tiny_run(tmp_path / "run", "coco-fpn", classes=SCENE_CLASSES)
    assert cli.main(["evaluate", str(run.path), "--data", str(other), "--pictures", "1"]) == 0
    place = run.path / "evaluated" / "other"
    assert json.loads((place / "scores.json").read_text())["tables"]
    assert [path.name for path in (place / "pictures").iterdir()] == ["predictions_1.png"]
    records = read_detections(place / "predictions" / "detections.json").records
    model = load_finetuned(run.path)
    photos = sorted((other / "images" / "test").iterdir())
    scores = [score for photo in photos for score in model(photo).scores.tolist()]
    found = [record["score"] for record in records]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(scores), rtol=0, atol=1e-5)


def test_a_segmenter_is_scored_and_other_classes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, out = tmp_path / "VOCdevkit", tmp_path / "out"
    for split in ("train", "test"):
        write_voc_scenes(other, split, count=2, size=64)  # type: ignore[arg-type]
    run, _ = write_tiny_run(tmp_path / "cats", "voc-semantic")
    assert cli.main(["evaluate", str(run.path), "--data", str(other)]) == 2
    assert "The model knows the classes cat, dog, person" in capsys.readouterr().err
    run, _ = write_tiny_run(tmp_path / "voc", "voc-semantic", classes=VOC_CLASSES)
    file = str(run.model)
    assert cli.main(["evaluate", file, "--data", str(other)]) == 2
    assert "Give --out" in capsys.readouterr().err
    assert cli.main(["evaluate", file, "--data", str(other), "--out", str(out)]) == 0
    assert len(read_label_maps(out / "predictions" / "classes.npz")) == 2
