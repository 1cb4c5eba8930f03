"""Whole detectors for other programs: weights and a config that fit each other."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from builders.tasks.exported_detectors import CLASSES, write_run, write_tiny_run
from builders.tasks.mmdetection import MMDetector
from references.tasks.detectron2_keys import expected_shapes

from clove_ssl import cli
from clove_ssl.config.detection import (
    BoxHeadConfig,
    DetectorConfig,
    MaskHeadConfig,
    c4_detector,
    fpn_detector,
    frozen_detector,
    keypoint_detector,
)
from clove_ssl.exporting.detectron2_config import detectron2_config
from clove_ssl.runs.directory import RunDirectory
from clove_ssl.tasks.base import TaskModel
from clove_ssl.tasks.detection.config import COCOC4Config, COCOKeypointsConfig, COCOPyramidConfig
from clove_ssl.tasks.rcnn.instances import DetectionBatch
from clove_ssl.weights.export.formats import FORMATS

Runs = Callable[[str], tuple[RunDirectory, TaskModel]]

ODD = replace(
    fpn_detector(),
    pyramid_width=64,
    box=BoxHeadConfig(convs=2, conv_width=32, fcs=2, fc_width=48),
    mask=MaskHeadConfig(convs=1, width=24),
)
MODELS: dict[str, tuple[str, str, DetectorConfig | None]] = {
    "pyramid": ("coco-fpn", "resnet18", None),
    "odd widths": ("coco-fpn", "resnet18", ODD),
    "pyramid of a resnext": ("coco-fpn", "resnext50_32x4d", ODD),
    "fixed norms": ("lvis-fpn", "resnet18", None),
    "keypoints": ("coco-keypoints", "resnet18", None),
    "c4": ("voc-c4", "resnet50", None),
    "c4 with masks": ("coco-c4", "resnet50", None),
    "c4 without norm": ("coco-c4", "resnet50", replace(c4_detector(masks=True), neck_norm="none")),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs with these models, which are written once; exports lie beside each other."""
    folder = tmp_path_factory.mktemp("detectors")

    @cache
    def written(name: str) -> tuple[RunDirectory, TaskModel]:
        task, architecture, detector = MODELS[name]
        return write_run(folder / name, task, architecture=architecture, detector=detector)

    yield written
    shutil.rmtree(folder)  # they are large


def export(run: RunDirectory, target: str) -> int:
    return cli.main(["export", str(run.path), "--to", target, "--heads"])


def read_detectron2(run: RunDirectory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config and the arrays."""
    path = run.model.with_name("model.detectron2.pkl")
    settings = yaml.safe_load(path.with_suffix(".yaml").read_text())
    return settings, pickle.loads(path.read_bytes())["model"]


@pytest.mark.parametrize("name", MODELS)
def test_the_config_for_detectron2_builds_exactly_what_the_file_holds(
    name: str, runs: Runs
) -> None:
    run, model = runs(name)
    assert export(run, "detectron2") == 0
    settings, arrays = read_detectron2(run)
    assert {key: array.shape for key, array in arrays.items()} == expected_shapes(settings)
    assert len(arrays) == len(model.state_dict())
    assert settings["MODEL"]["WEIGHTS"] == "model.detectron2.pkl"
    assert settings["MODEL"]["ROI_HEADS"]["NUM_CLASSES"] == len(CLASSES)
    assert (settings["INPUT"]["FORMAT"], settings["INPUT"]["MIN_SIZE_TEST"]) == ("RGB", 800)
    extra = run.model.with_name("res5_extra_norm.py")
    assert extra.is_file() == (settings["MODEL"]["ROI_HEADS"]["NAME"] == "Res5ROIHeadsExtraNorm")
    if extra.is_file():
        compile(extra.read_text(), str(extra), "exec")


@pytest.mark.golden
@pytest.mark.parametrize(
    ("recorded", "task", "classes", "keypoints"),
    [
        ("c4_mask", COCOC4Config(), 80, 0),
        ("fpn_mask", COCOPyramidConfig(), 80, 0),
        ("fpn_keypoint", COCOKeypointsConfig(), 1, 17),
    ],
)
def test_configs_build_what_detectron2_was_seen_to_build(
    recorded: str, task: Any, classes: int, keypoints: int
) -> None:
    table = Path(__file__).parents[1] / "golden" / "detectron2" / f"09_{recorded}_keys.json"
    theirs = {
        entry["name"]: tuple(entry["shape"]) for entry in json.loads(table.read_text())["keys"]
    }
    settings = detectron2_config(
        task, "resnet50", classes=classes, keypoints=keypoints, weights="w.pkl"
    )
    assert expected_shapes(settings) == theirs


def test_frozen_stages_and_norms_are_told() -> None:
    task = replace(COCOPyramidConfig(), detector=frozen_detector())
    model = detectron2_config(task, "resnet50", classes=3, keypoints=0, weights="w.pkl")["MODEL"]
    assert model["BACKBONE"]["FREEZE_AT"] == 2
    norms = [model[part]["NORM"] for part in ("RESNETS", "FPN", "ROI_BOX_HEAD", "ROI_MASK_HEAD")]
    assert norms == ["FrozenBN", "", "", ""]
    task = replace(COCOPyramidConfig(), detector=keypoint_detector())
    model = detectron2_config(task, "resnet50", classes=1, keypoints=17, weights="w.pkl")["MODEL"]
    assert model["RPN"]["POST_NMS_TOPK_TRAIN"] == 1500
    assert model["ROI_BOX_HEAD"]["SMOOTH_L1_BETA"] == 0.5


@pytest.mark.parametrize("name", ["pyramid", "odd widths", "fixed norms"])
def test_the_config_for_mmdetection_builds_what_the_file_holds(name: str, runs: Runs) -> None:
    run, model = runs(name)
    assert export(run, "mmdetection") == 0
    path = run.model.with_name("model.mmdetection.pth")
    content = torch.load(path, weights_only=True)
    assert content["meta"]["dataset_meta"]["classes"] == CLASSES
    state = content["state_dict"]
    assert sum(not key.endswith("tracked") for key in state) == sum(
        not key.endswith("tracked") for key in model.state_dict()
    )
    names: dict[str, Any] = {}
    exec(path.with_suffix(".py").read_text(), names)
    assert names["model"]["roi_head"]["bbox_head"]["num_classes"] == len(CLASSES)


@pytest.mark.parametrize("name", ["pyramid", "odd widths", "fixed norms"])
def test_mmdetection_finds_the_same_objects(name: str, runs: Runs) -> None:
    native = FORMATS["mmdetection"].native
    assert native is not None
    if not native.is_there():
        pytest.skip("MMDetection is not installed")
    run, model = runs(name)
    assert export(run, "mmdetection") == 0
    theirs = MMDetector(run.model.with_name("model.mmdetection.pth"))
    image = torch.randint(0, 256, (3, 192, 256), generator=torch.Generator().manual_seed(0))
    batch = DetectionBatch((image.byte(),), (), ((192, 256),), torch.arange(1))
    with torch.no_grad():
        levels = model.detector.maps(batch)
        found = model.detector.detect(batch)[0]
    for mine, other in zip(levels, theirs.maps(image), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
    boxes, scores, classes = theirs.detections(image)
    assert len(found.boxes) == len(boxes) > 0
    torch.testing.assert_close(found.scores, scores, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.boxes, boxes, rtol=0, atol=1e-2)
    assert torch.equal(found.classes, classes)


@pytest.mark.parametrize(
    ("task", "architecture", "target", "words"),
    [
        ("voc-c4", "resnet18", "detectron2", "have bottleneck blocks"),
        ("coco-keypoints", "resnet18", "mmdetection", "MMDetection has no such detector"),
        ("voc-c4", "resnet50", "mmdetection", "MMDetection has no such detector"),
        ("coco-fpn", "convnext_tiny", "detectron2", "which has no such network"),
        ("coco-fpn", "resnet18", "timm", "--heads cannot go to timm"),
    ],
)
def test_detectors_that_a_program_does_not_have_are_refused(
    task: str,
    architecture: str,
    target: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", task, architecture=architecture)
    before = sorted(run.model.parent.iterdir())
    assert export(run, target) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert words in message
    assert sorted(run.model.parent.iterdir()) == before


@pytest.mark.parametrize(("target", "config"), [("detectron2", "w.yaml"), ("mmdetection", "w.py")])
def test_a_config_replaces_neither_its_weights_nor_what_a_user_wrote(
    target: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = write_tiny_run(tmp_path / "run", "coco-fpn")
    command = ["export", str(run.path), "--to", target, "--heads", "--out"]
    assert cli.main([*command, str(tmp_path / "w")]) == 2  # Detectron2 looks at the suffix
    assert re.search(r"give --out .*/w\.p(kl|th)\.", capsys.readouterr().err)
    assert cli.main([*command, str(tmp_path)]) == 2
    assert f"give --out {tmp_path}/model.{target}.p" in capsys.readouterr().err
    assert cli.main([*command, str(tmp_path / config)]) == 2
    assert "has that name. Give them another suffix" in capsys.readouterr().err
    assert not (tmp_path / config).exists()
    (tmp_path / config).write_text("mine")
    assert cli.main([*command, str(tmp_path / "w.bin")]) == 2
    assert f"{config} exists already" in capsys.readouterr().err
    assert (tmp_path / config).read_text() == "mine"
    assert not (tmp_path / "w.bin").exists()
