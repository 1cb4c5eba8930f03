"""Whole detectors and segmenters as graphs, which compute what the models do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders.tasks.exported_detectors import write_tiny_run
from PIL import Image
from torch import Tensor
from torchvision.ops import nms

from clove_ssl import cli, load_finetuned
from clove_ssl.data.scenes import SceneSource
from clove_ssl.exporting.agreement import compare_detections
from clove_ssl.exporting.detector_graph import DetectorGraph
from clove_ssl.exporting.suppression import suppress_with_torchvision
from clove_ssl.finetuning.finetuned import FinetunedModel
from clove_ssl.tasks.rcnn.instances import DetectionBatch


def scene(number: int, *, height: int, width: int) -> Tensor:
    pixels = SceneSource(number + 1, size=max(height, width)).scene(number).image
    return torch.from_numpy(pixels).permute(2, 0, 1)[:, :height, :width].contiguous()


@pytest.mark.parametrize("task", ["coco-fpn", "voc-c4", "coco-keypoints"])
def test_the_graph_of_a_detector_finds_what_the_detector_finds(task: str, tmp_path: Path) -> None:
    """Also where a smaller image lies in a larger batch, whose rest is never read."""
    _, model = write_tiny_run(tmp_path / "run", task)
    detector = model.detector
    images = [scene(0, height=96, width=83), scene(1, height=70, width=96)]
    sizes = [(96, 83), (70, 96)]
    stacked = torch.full((2, 3, 96, 96), 77, dtype=torch.uint8)
    for place, image in zip(stacked, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    graph = DetectorGraph(detector, suppress_with_torchvision)
    with torch.no_grad():
        outputs = dict(zip(graph.outputs, graph(stacked, torch.tensor(sizes)), strict=True))
        found = detector.find(DetectionBatch(tuple(images), (), tuple(sizes), torch.arange(2)))
    for number, mine in enumerate(found):
        count = int(outputs["counts"][number])
        assert count == len(mine.scores) > 0
        for name in ("boxes", "scores", "classes", "masks"):
            expected = getattr(mine, name)
            if expected is not None:
                torch.testing.assert_close(
                    outputs[name][number, :count], expected, rtol=0, atol=1e-4
                )
    assert ("keypoint_maps" in outputs) == (task == "coco-keypoints")


def test_groups_of_boxes_do_not_meet() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = 50 * torch.rand(4, 40, 2, generator=generator)
    boxes = torch.cat([corners, corners + 20 * torch.rand(4, 40, 2, generator=generator)], dim=2)
    scores = torch.rand(4, 40, generator=generator) - 0.2
    kept = suppress_with_torchvision(boxes, scores, 0.4)
    for group, own, marks in zip(boxes, scores, kept, strict=True):
        rows = (own > 0).nonzero().squeeze(1)
        expected = rows[nms(group[rows], own[rows], 0.4)]
        assert set(marks.nonzero().squeeze(1).tolist()) == set(expected.tolist())
    assert 0 < kept.sum() < (scores > 0).sum()
    assert not suppress_with_torchvision(boxes, -scores.abs(), 0.4).any()


@pytest.mark.slow
def test_the_onnx_file_runs_in_its_script_alone(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    run, _ = write_tiny_run(tmp_path / "run", "voc-c4")  # the smallest graph
    scene = Image.fromarray(SceneSource(1, size=90).scene(0).image).resize((90, 61))
    assert cli.main(["export", str(run.path), "--to", "onnx"]) == 0
    script = run.model.with_name("model.onnx.py")
    assert "clove" not in script.read_text()
    grey = Image.fromarray(np.asarray(scene.convert("L")).astype(np.uint16) * 257)
    clear = scene.copy()
    clear.putalpha(scene.convert("L"))
    for picture in (scene, grey, clear):  # of 8 bits, of 16, and partly transparent
        picture.save(tmp_path / "photo.png")
        check_script(script, tmp_path / "photo.png", load_finetuned(run.path))


def check_script(script: Path, photo: Path, model: FinetunedModel) -> None:
    ended = subprocess.run(
        [sys.executable, script.name, str(photo)], cwd=script.parent, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    found = model(photo)
    assert [line[0] for line in lines] == [model.class_names[n] for n in found.classes.tolist()]
    scores = torch.tensor([float(line[1]) for line in lines])
    torch.testing.assert_close(scores, found.scores, rtol=0, atol=1e-3)
    boxes = torch.tensor([[float(value) for value in line[2:]] for line in lines])
    torch.testing.assert_close(boxes, found.boxes, rtol=0, atol=0.1)


def test_a_segmenter_is_exported_whole_and_its_backbone_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "voc-semantic")
    assert cli.main(["export", str(run.path), "--to", "torch-export"]) == 0
    assert "the whole segmenter" in capsys.readouterr().out
    image = scene(0, height=50, width=64)
    program = torch.export.load(run.model.with_name("model.pt2")).module()
    (classes,) = program(image[None])
    assert torch.equal(classes[0].to(torch.uint8), load_finetuned(run.path)(image))


def test_a_backbone_alone_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "coco-fpn")
    assert cli.main(["export", str(run.path), "--to", "timm"]) == 0
    assert "the backbone alone" in capsys.readouterr().out
    path = str(run.path)
    assert cli.main(["export", path, "--to", "onnx", "--heads", "--backbone-only"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "name"),
    [(["--to", "torch-export"], "model.pt2"), (["--to", "mmdetection", "--heads"], "model.*.pth")],
)
def test_models_of_two_files_do_not_replace_each_other(
    options: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inside a run the export before is replaced, but beside a file it may be of another model."""
    run, _ = write_tiny_run(tmp_path / "run", "coco-fpn")
    file = run.model.rename(tmp_path / "first.safetensors")
    there = tmp_path / name.replace("*", "mmdetection")
    there.write_text("of a second model")
    assert cli.main(["export", str(file), *options]) == 2
    assert f"{there.name} exists already" in " ".join(capsys.readouterr().err.split())
    assert there.read_text() == "of a second model"


def test_detections_are_compared_by_pairs() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 9, 9], [0, 0, 10, 10]])
    scores, classes = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 1, 2])
    order = [2, 0]
    moved = boxes[order] + torch.tensor([[0.05], [0.0]])
    found = compare_detections(boxes, scores, classes, moved, scores[order], classes[order])
    assert found.box == pytest.approx(0.05, abs=1e-6)
    assert (found.score, found.pairs, found.alone) == (0.0, 2, 1)
    assert not found.holds
    empty = [each[:0] for each in (boxes, scores, classes)]
    assert compare_detections(*empty, *empty).holds
