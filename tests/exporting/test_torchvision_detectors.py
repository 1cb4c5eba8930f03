"""Whole detectors in torchvision's classes: they load strictly, and find what ours find."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from builders.tasks.exported_detectors import write_run, write_tiny_run
from PIL import Image
from torch import Tensor

from clove_ssl import cli, load_finetuned
from clove_ssl.backbones.build import build_backbone
from clove_ssl.config.pretraining import BackboneConfig
from clove_ssl.data.scenes import SceneSource
from clove_ssl.exporting import torchvision_detectors
from clove_ssl.exporting.agreement import Agreement, compare_detections
from clove_ssl.exporting.scripts import RESIZING
from clove_ssl.finetuning.finetuned import FinetunedModel
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.own.config import own_detector
from clove_ssl.tasks.rcnn.detector import build_detector
from clove_ssl.tasks.rcnn.pixels import resized_shape
from clove_ssl.tasks.rcnn.torchvision_names import torchvision_state
from clove_ssl.weights.load import read_backbone

SHAPES = [(150, 201), (97, 64)]  # neither is a multiple of the coarsest stride, nor seen as it is


def export(run: RunDirectory, *more: str) -> int:
    return cli.main(["export", str(run.path), "--to", "torchvision", "--heads", *more])


def program(run: RunDirectory) -> dict[str, Any]:
    return runpy.run_path(str(run.model.with_name("model_torchvision.py")))


def photo(number: int, height: int, width: int) -> Tensor:
    pixels = SceneSource(number + 1, size=max(height, width)).scene(number).image
    return torch.from_numpy(pixels).permute(2, 0, 1)[:, :height, :width].contiguous()


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("detect", "FasterRCNN"),
        ("instances", "MaskRCNN"),
        ("keypoints", "KeypointRCNN"),
        ("coco-fpn", "MaskRCNN"),  # with convolutions and norms in its heads
        ("lvis-fpn", "MaskRCNN"),  # with fixed norms
    ],
)
def test_torchvision_finds_what_the_detector_finds(task: str, kind: str, tmp_path: Path) -> None:
    run, _ = write_tiny_run(tmp_path / "run", task)
    assert export(run) == 0
    there = program(run)
    theirs, mine = there["build"](), load_finetuned(run.path)
    backbone, report = read_backbone(run.model.with_name("model.torchvision.pth"))
    assert (backbone.name, report.layout) == ("resnet18", "torchvision (detector)")
    assert type(theirs) is getattr(torchvision.models.detection, kind)
    assert there["CLASSES"] == ["background", *mine.class_names]
    card = run.model.with_name("model.torchvision.pth.md").read_text()
    assert f"torchvision.models.detection.{kind}" in card
    total = Agreement()
    for number, shape in enumerate(SHAPES):
        total += compare(mine, theirs, photo(number, *shape))
    assert total.pairs >= 8
    assert (total.alone, total.box < 1e-3, total.score < 1e-5) == (0, True, True)


@torch.no_grad()
def compare(mine: FinetunedModel, theirs: torch.nn.Module, image: Tensor) -> Agreement:
    """Boxes of both, and here already masks and keypoints, which come in the same order."""
    found, (other,) = mine(image), theirs([image / 255])
    if found.masks is not None:
        torch.testing.assert_close(other["masks"][:, 0] >= 0.5, found.masks)
    if found.keypoints is not None:
        places = other["keypoints"][..., :2]
        torch.testing.assert_close(places, found.keypoints[..., :2], rtol=0, atol=1e-2)
    return compare_detections(
        *(found.boxes, found.scores, found.classes),
        *(other["boxes"], other["scores"], other["labels"] - 1),
    )


def test_the_printed_lines_print_the_objects_of_a_photo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "detect")
    assert export(run) == 0
    folder = run.model.parent
    printed = capsys.readouterr().out
    lines = printed[printed.index("import torch\n") :]
    assert len(lines.strip().splitlines()) == 10
    assert lines in (folder / "model.torchvision.pth.md").read_text()
    Image.fromarray(SceneSource(1, size=90).scene(0).image).resize((90, 61)).save(
        folder / "photo.jpg", quality=95
    )
    (folder / "use.py").write_text(lines)
    ended = subprocess.run(
        [sys.executable, "use.py"], cwd=folder, env={"PATH": ""}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    model = load_finetuned(run.path)
    found = model(folder / "photo.jpg")
    told = [line.split() for line in ended.stdout.splitlines()]
    assert [line[0] for line in told] == [model.class_names[n] for n in found.classes.tolist()]
    numbers = torch.tensor([[float(value) for value in line[1:]] for line in told])
    torch.testing.assert_close(numbers[:, 0], found.scores, rtol=0, atol=1e-3)
    torch.testing.assert_close(numbers[:, 1:], found.boxes, rtol=0, atol=0.1)


def test_names_are_those_of_torchvisions_own_builder() -> None:
    config = replace(own_detector(masks=True), neck_norm="none")
    backbone = build_backbone(BackboneConfig(name="resnet50"))
    state = torchvision_state(build_detector(config, backbone, classes=3))
    model = torchvision.models.detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4
    )
    model.load_state_dict(state, strict=True)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("voc-c4", "no last stage of a backbone as box head"),
        ("coco-densepose", "no DensePose head"),
        ("voc-semantic", "is no detector"),
    ],
)
def test_what_torchvision_does_not_have_is_refused(
    task: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", task)
    before = sorted(run.path.rglob("*"))
    assert export(run) == 2
    assert reason in capsys.readouterr().err
    assert sorted(run.path.rglob("*")) == before


def test_masks_and_keypoints_together_and_other_networks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = replace(own_detector(masks=True, keypoints=True), pyramid_width=16)
    run, _ = write_run(tmp_path / "both", "keypoints", detector=both)
    assert export(run) == 2
    assert "draw masks or place keypoints, not both" in capsys.readouterr().err
    run, _ = write_tiny_run(tmp_path / "net", "detect", architecture="regnet_y_400mf")
    assert export(run) == 2
    assert "which has no such network" in capsys.readouterr().err


def test_what_does_not_agree_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "detect")
    before = sorted(run.path.rglob("*"))
    monkeypatch.setattr(torchvision_detectors, "_compare", lambda *_: Agreement(box=3.0, pairs=9))
    assert export(run) == 2
    assert "was not written: torchvision does not find" in capsys.readouterr().err
    assert sorted(run.path.rglob("*")) == before


def test_a_program_of_somebody_else_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "detect")
    other = tmp_path / "my_net_torchvision.py"
    other.write_text("print('mine')\n")
    assert export(run, "--out", str(tmp_path / "my-net.pth")) == 2
    assert "exists already" in capsys.readouterr().err
    assert other.read_text() == "print('mine')\n"
    assert not (tmp_path / "my-net.pth").exists()


@pytest.mark.parametrize("name", ["50-epochs.pth", "a b.v2.pth"])
def test_the_program_can_be_imported_whatever_the_weights_are_called(
    name: str, tmp_path: Path
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "detect")
    assert export(run, "--out", str(tmp_path / name)) == 0
    (written,) = tmp_path.glob("*_torchvision.py")
    assert written.stem.isidentifier()


def test_programs_resize_to_the_pixel_as_detectors_do() -> None:
    """Among them 88 x 176, which the other order of operations makes one pixel higher."""
    for wanted, longest in ((800, 1333), (480, 800), (192, 320)):
        rule = compile(RESIZING.format(indent="", short_side=wanted, longest=longest), "", "exec")
        for height in (1, 88, 121, 333, 480, 1000):
            for width in (1, 176, 427, 640, 946, 2000):
                names: dict[str, Any] = {"photo": Image.new("1", (width, height))}
                exec(rule, names)
                shape = resized_shape(height, width, short_side=wanted, longest=longest)
                assert names["size"] == [shape[1], shape[0]]
