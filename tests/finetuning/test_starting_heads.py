"""Heads of whole detectors as a start: what fits is taken, the rest is told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders.runs.tiny_finetuning import tiny_detector, tiny_finetuning
from builders.tasks.exported_detectors import write_run

from clove_ssl import cli
from clove_ssl.config.finetuning import protocol
from clove_ssl.errors import UserError
from clove_ssl.finetuning import seeds as finetuning
from clove_ssl.finetuning.starting_heads import load_heads
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.rcnn.torchvision_names import heads_from_torchvision

SUFFIXES = {
    "detectron2": ".detectron2.pkl",
    "mmdetection": ".mmdetection.pth",
    "torchvision": ".torchvision.pth",
}


def heads_of(model: TaskModel) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for name, tensor in model.detector.state_dict().items()  # type: ignore[attr-defined]
        if not name.startswith("features.backbone.")
    }


def small_run(
    folder: Path, task: str, *, classes: tuple[str, ...] = ("cat", "dog", "person")
) -> tuple[RunDirectory, TaskModel]:
    detector = tiny_detector(protocol(task, folder, "random").task.detector)  # type: ignore[attr-defined]
    return write_run(folder, task, detector=detector, classes=classes)


def written(folder: Path, program: str, task: str = "coco-fpn") -> tuple[Path, TaskModel]:
    """A detector as a program would have it, and the model it holds."""
    run, model = small_run(folder, task)
    if program == "clove-ssl":
        return run.path, model
    assert cli.main(["export", str(run.path), "--to", program, "--heads"]) == 0
    return run.model.with_name(f"model{SUFFIXES[program]}"), model


@pytest.mark.parametrize("program", ["clove-ssl", *SUFFIXES])
def test_heads_of_the_same_detector_fit_completely(program: str, tmp_path: Path) -> None:
    path, original = written(tmp_path / "one", program)
    _, model = small_run(tmp_path / "other", "coco-fpn")
    with torch.no_grad():
        for tensor in heads_of(model).values():
            tensor.zero_()
    report = load_heads(model, path)
    assert report.program.lower() == program
    assert (report.missing, report.reshaped, report.unused) == ((), (), ())
    theirs = heads_of(original)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in heads_of(model).items())


@pytest.mark.parametrize("program", [*SUFFIXES])
def test_what_does_not_fit_is_told(program: str, tmp_path: Path) -> None:
    path, _ = written(tmp_path / "one", program)
    _, model = small_run(tmp_path / "other", "coco-fpn", classes=("thing",))
    report = load_heads(model, path)
    afresh = {name.split(" ")[0] for name in report.reshaped}
    assert afresh == {
        *("box_predictor.cls_score.weight", "box_predictor.cls_score.bias"),
        *("box_predictor.bbox_pred.weight", "box_predictor.bbox_pred.bias"),
        *("mask_head.predictor.weight", "mask_head.predictor.bias"),
    }
    line = report.describe()
    assert re.search(r"cls_score.weight 4 x (\d+) for 2 x \1\b", line)
    _, pointed = small_run(tmp_path / "third", "coco-keypoints")
    other = load_heads(pointed, path)
    assert any("keypoint_head" in name for name in other.missing)
    assert any("mask_head" in name for name in other.unused)


def test_names_of_torchvisions_released_files_are_known() -> None:
    """They were written before its convolutions became blocks."""
    old = {
        "backbone.fpn.inner_blocks.1.weight": "backbone.fpn.inner_blocks.1.0.weight",
        "backbone.fpn.layer_blocks.0.bias": "backbone.fpn.layer_blocks.0.0.bias",
        "rpn.head.conv.weight": "rpn.head.conv.0.0.weight",
        "roi_heads.mask_head.mask_fcn4.bias": "roi_heads.mask_head.3.0.bias",
        "roi_heads.box_head.fc6.weight": "roi_heads.box_head.fc6.weight",
    }
    rows = torch.arange(12.0)
    assert list(heads_from_torchvision(dict.fromkeys(old, rows))) == list(old.values())
    scores = heads_from_torchvision({"roi_heads.box_predictor.cls_score.bias": rows[:3]})
    assert next(iter(scores.values())).tolist() == [1, 2, 0]
    offsets = heads_from_torchvision({"roi_heads.box_predictor.bbox_pred.bias": rows})
    assert next(iter(offsets.values())).tolist() == [*range(4, 12)]


def test_files_without_heads_are_refused(tmp_path: Path) -> None:
    run, model = small_run(tmp_path / "one", "coco-fpn")
    with pytest.raises(UserError, match="holds no heads of a detector"):
        load_heads(model, run.backbone)
    with pytest.raises(UserError, match="holds no detector"):
        load_heads(model, tmp_path / "nowhere")
    with pytest.raises(UserError, match="the backbone is random"):
        replace(protocol("coco-fpn", tmp_path, "random"), heads=True)


def test_a_run_starts_from_a_detector_and_says_so(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "one", "detectron2")
    config = tiny_finetuning("coco-fpn", tmp_path / "run", iterations=1)
    config = replace(config, backbone=str(path), architecture=None, heads=True)
    finetuning.finetune(config)
    check = json.loads(RunDirectory(tmp_path / "run").self_check.read_text())
    assert "tensors from" in check["facts"]["heads"]
    assert "Detectron2" in check["facts"]["heads"]
    assert any("heads start from" in line for line in check["differences"])
