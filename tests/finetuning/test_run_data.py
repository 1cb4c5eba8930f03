"""What is wrong with a user's data is said in one message that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clove_ssl import cli
from clove_ssl.tasks.detection.scenes import write_coco_scenes, write_voc_scenes

SMALL = [
    *("--backbone", "random", "--architecture", "resnet18", "--device", "cpu"),
    *("--iterations", "1", "--batch-size", "2", "--data.workers", "1"),
]
DETECTOR = [
    *("--task.train-sides", "64", "--task.test-side", "64"),
    *("--task.detector.box.regions-per-image", "8", "--task.detector.box.convs", "0"),
    *("--task.detector.box.fc-width", "16", "--task.detector.mask.convs", "0"),
    *("--task.detector.pyramid-width", "16", "--task.detector.proposals.test-after-nms", "20"),
]


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        write_coco_scenes(tmp_path / "coco", split, count=4, size=64)
    return tmp_path / "coco"


def run(task: str, data: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """The message of a run that ends with a mistake."""
    out = data.parent / "out"
    command = ["finetune", task, "--data", str(data), "--out", str(out), *SMALL, *more]
    assert cli.main(command) == 2
    return " ".join(capsys.readouterr().err.split())


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def outside(content: dict[str, Any]) -> None:
    content["annotations"][0]["bbox"] = [60, 60, 30, 30]


def flat(content: dict[str, Any]) -> None:
    content["annotations"][0]["bbox"][2] = 0


def renamed(content: dict[str, Any]) -> None:
    content["categories"][0]["name"] = "unicorn"


def empty(content: dict[str, Any]) -> None:
    content["images"], content["annotations"] = [], []


def unknown_image(content: dict[str, Any]) -> None:
    content["images"][0]["file_name"] = "lost.png"


def without_masks(content: dict[str, Any]) -> None:
    for entry in content["annotations"]:
        entry.pop("segmentation")


def displaced(content: dict[str, Any]) -> None:
    content["annotations"][0]["segmentation"] = [[400, 4, 500, 4, 500, 9]]


def without_objects(content: dict[str, Any]) -> None:
    content["annotations"] = []


def without_keypoints(content: dict[str, Any]) -> None:
    for entry in content["annotations"]:
        entry.pop("keypoints", None)


@pytest.mark.parametrize(
    ("task", "edit", "parts"),
    [
        ("coco-fpn", without_masks, ("of the test image", "--task.detector.no-masks")),
        ("coco-fpn", without_objects, ("test images has an object that is no crowd",)),
        ("coco-keypoints", without_keypoints, ("test images has an object with a labelled",)),
    ],
)
def test_a_test_set_that_cannot_be_scored_is_refused_before_training(
    coco: Path,
    capsys: pytest.CaptureFixture[str],
    task: str,
    edit: Callable[[dict[str, Any]], None],
    parts: tuple[str, ...],
) -> None:
    kind = "person_keypoints" if task == "coco-keypoints" else "instances"
    change(coco / f"annotations/{kind}_test.json", edit)
    message = run(task, coco, capsys)
    assert all(part in message for part in parts), message
    assert not (coco.parent / "out").exists()


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (displaced, ("Annotation 1 of", "polygon outside", "--data.faulty leave-out")),
        (outside, ("Annotation 1 of", "instances_train.json", "leaves its image")),
        (flat, ("Annotation 1 of", "without area")),
        (renamed, ("unicorn", "category 1")),
        (empty, ("instances_train.json", "lists no image")),
        (unknown_image, ("lost.png",)),
        (without_masks, ("None of the 4 training images", "segmentation")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_of_annotations_are_named_before_training(
    coco: Path,
    capsys: pytest.CaptureFixture[str],
    edit: Callable[[dict[str, Any]], None],
    parts: tuple[str, ...],
) -> None:
    change(coco / "annotations/instances_train.json", edit)
    message = run("coco-fpn", coco, capsys)
    assert all(part in message for part in parts), message
    assert not (coco.parent / "out").exists()


def test_keypoints_of_another_length_are_named(
    coco: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(content: dict[str, Any]) -> None:
        content["annotations"][0]["keypoints"] = [1, 2]

    change(coco / "annotations/person_keypoints_train.json", edit)
    message = run("coco-keypoints", coco, capsys)
    assert "Annotation 1 of" in message
    assert "2 keypoint numbers" in message


def test_a_missing_annotation_file_is_named(coco: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (coco / "annotations/instances_test.json").unlink()
    assert "instances_test.json" in run("coco-fpn", coco, capsys)


def test_a_damaged_image_is_named_by_the_worker_that_meets_it(
    coco: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (coco / "images/train").glob("*.png"):
        damaged = bytearray(path.read_bytes())
        damaged[-2000] ^= 255  # both ends are as they should be
        path.write_bytes(damaged)
    message = run("coco-fpn", coco, capsys, *DETECTOR)
    assert "cannot be read" in message
    assert "images/train/" in message
    assert "Traceback" not in message


def test_an_image_that_is_cut_off_is_named_before_training(
    coco: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted((coco / "images/test").glob("*.png"))[-1]
    path.write_bytes(path.read_bytes()[:-2000])
    assert path.name in run("coco-fpn", coco, capsys)
    assert not (coco.parent / "out").exists()


def test_damaged_label_maps_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "test"):
        write_voc_scenes(tmp_path / "voc", split, count=2, size=64)
    folder = tmp_path / "voc/VOC2012/SegmentationClass"
    Image.new("L", (64, 64), 77).save(folder / "train_000000.png")
    Image.new("L", (64, 64), 77).save(folder / "train_000001.png")
    message = run("voc-semantic", tmp_path / "voc", capsys, "--task.crop", "64")
    assert "up to 77" in message
    assert not (tmp_path / "out").exists()
    Image.new("L", (32, 64), 1).save(folder / "train_000000.png")
    message = run("voc-semantic", tmp_path / "voc", capsys, "--task.crop", "64")
    assert "train_000000.png has 32 x 64 pixels, but its image 64 x 64" in message
    Image.new("L", (64, 64), 1).save(folder / "train_000000.png")
    (folder / "train_000001.png").unlink()
    capsys.readouterr()
    again = ["finetune", "voc-semantic", "--data", str(tmp_path / "voc"), "--out"]
    assert cli.main([*again, str(tmp_path / "other"), *SMALL]) == 2
    assert "train_000001.png" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_files_in_cocos_format_are_given_one_by_one(coco: Path) -> None:
    moved = coco.parent / "elsewhere"
    (coco / "annotations").rename(moved)
    (coco / "images" / "train").rename(coco.parent / "photos")
    paths = [
        *("--data.train-annotations", str(moved / "instances_train.json")),
        *("--data.train-images", str(coco.parent / "photos")),
        *("--data.test-annotations", str(moved / "instances_test.json")),
        *("--data.test-images", str(coco / "images" / "test")),
    ]
    small = ["--evaluation.precise-norm-batches", "1", "--evaluation.pictures", "0", *DETECTOR]
    out = coco.parent / "out"
    assert cli.main(["finetune", "coco-fpn", "--out", str(out), *paths, *SMALL, *small]) == 0
    assert (out / "scores.json").is_file()
    assert not (out / "scenes").exists()
