"""Every format gives the same data set, to the last bit of a training batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.labels.small_datasets import random_dataset
from builders.labels.written_formats import WRITERS, Splits, voc_splits
from builders.runs.tiny_finetuning import tiny_detector
from PIL import Image

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading, Vocabulary
from clove_ssl.tasks.own.config import DetectConfig, KeypointsConfig
from clove_ssl.tasks.own.dataset import OwnData
from clove_ssl.tasks.own.finding import open_own
from clove_ssl.tasks.own.pixel_labels import pixel_labels

READING = Reading.alone(batch=2, steps=2, prefetch=1)


@pytest.fixture
def splits(tmp_path: Path) -> Splits:
    whole = random_dataset(tmp_path / "photos")
    bare = tuple(
        replace(s, annotations=tuple(_box_alone(t) for t in s.annotations)) for s in whole.samples
    )
    parts = {"train": bare[:5], "val": bare[5:]}
    return {name: replace(whole, samples=samples) for name, samples in parts.items()}


def _box_alone(thing: Any) -> Any:
    x0, y0, x1, y1 = thing.box
    return replace(thing, area=(x1 - x0) * (y1 - y0), mask=None, keypoints=None)


def opened(root: Path, **changes: Any) -> OwnData:
    return open_own(LabelledDataConfig(root=root, **changes))


def content(data: OwnData) -> Any:
    """All that a model can see of a data set."""
    return data.class_names, {
        split: [
            (
                *(item.sample.image.name, item.sample.width, item.sample.height),
                *(
                    (t.box, t.category, t.area, t.mask, t.keypoints)
                    for t in item.sample.annotations
                ),
            )
            for item in items
        ]
        for split, items in data.items.items()
    }


def batches(root: Path) -> list[Any]:
    usual = DetectConfig()
    task = replace(
        usual, detector=tiny_detector(usual.detector), train_sides=(48, 64), test_side=64
    ).build()
    return list(task.training_batches(task.read(LabelledDataConfig(root=root)), READING))


def assert_same_batches(a: list[Any], b: list[Any]) -> None:
    for one, other in zip(a, b, strict=True):
        assert all(map(torch.equal, one.images, other.images))
        for mine, theirs in zip(one.targets, other.targets, strict=True):
            assert torch.equal(mine.boxes, theirs.boxes)
            assert torch.equal(mine.classes, theirs.classes)


def test_coco_voc_and_yolo_give_the_same_data_set(splits: Splits, tmp_path: Path) -> None:
    roots = {name: write(splits, tmp_path / name) for name, write in WRITERS.items()}
    found = {name: opened(root) for name, root in roots.items()}
    assert {data.format for data in found.values()} == {"COCO", "VOC", "YOLO"}
    assert not any(data.problems for data in found.values())
    assert content(found["coco"]) == content(found["voc"]) == content(found["yolo"])
    assert [len(items) for items in found["coco"].items.values()] == [5, 2]
    first = batches(roots["coco"])
    assert_same_batches(first, batches(roots["voc"]))
    assert_same_batches(first, batches(roots["yolo"]))


def test_the_voc_pack_is_the_same_in_three_formats(tmp_path: Path, data_folder: Path) -> None:
    pack = voc_splits(data_folder / "voc2012", most=150)
    found = [opened(write(pack, tmp_path / name)) for name, write in WRITERS.items()]
    truth = {
        split: [
            [t.box for t in s.annotations] for s in sorted(d.samples, key=lambda s: s.image.name)
        ]
        for split, d in pack.items()
    }
    for data in found:
        assert content(data) == content(found[0])
        read = {
            split: [[t.box for t in item.sample.annotations] for item in items]
            for split, items in data.items.items()
        }
        assert read == truth


def test_one_file_of_coco_is_split_by_a_seed(splits: Splits, tmp_path: Path) -> None:
    both = replace(splits["train"], samples=(*splits["train"].samples, *splits["val"].samples))
    root = WRITERS["coco"]({"images": both}, tmp_path / "coco")
    file = root / "annotations" / "images.json"
    first, again = opened(file), opened(file)
    assert content(first) == content(again)
    assert [len(items) for items in first.items.values()] == [6, 1]
    assert "1 of 7 images were drawn for it (seed 0" in first.notes[0]
    drawn = {
        tuple(item.sample.image.name for item in opened(file, split_seed=seed).items["val"])
        for seed in range(6)
    }
    assert len(drawn) > 1


def test_other_data_are_read_in_the_classes_of_a_model(splits: Splits, tmp_path: Path) -> None:
    task = DetectConfig().build()
    model = Vocabulary(("whale", "person", "cup"), (7, 8, 9))
    other = LabelledDataConfig(root=WRITERS["voc"](splits, tmp_path / "voc"))
    test = task.read_other(other, tmp_path, model)
    truth = [thing.category for thing in opened(other.root or tmp_path).annotations("val")]
    read = [thing.category for sample in test.samples for thing in sample.annotations]
    assert (test.class_names, test.category_ids) == (model.class_names, model.category_ids)
    assert read == [{0: 2, 1: 1}[category] for category in truth]
    with pytest.raises(UserError, match="objects of 'cup', which the model does not know"):
        task.read_other(other, tmp_path, Vocabulary(("person",), (1,)))


POLYGON = [[5.0, 6.0], [30.0, 6.0], [30.0, 26.0], [5.0, 26.0]]


def photo(path: Path, size: tuple[int, int] = (60, 40)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(path.name.encode())
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_outlines_of_labelme_and_yolo_are_masks_and_boxes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        photo(tmp_path / "me" / f"{name}.png")
        shapes = [
            {"label": "cup", "points": POLYGON, "shape_type": "polygon"},
            {"label": "box", "points": [[9, 9], [20, 30]], "shape_type": "rectangle"},
            {"label": "cup", "points": [[1, 1]], "shape_type": "point"},
        ]
        content_of_file = {"shapes": shapes, "imagePath": f"..\\{name}.png"}
        (tmp_path / "me" / f"{name}.json").write_text(json.dumps(content_of_file))
        photo(tmp_path / "yolo" / "images" / f"{name}.png")
        shares = " ".join(f"{x / 60:.6f} {y / 40:.6f}" for x, y in POLYGON)
        labels = tmp_path / "yolo" / "labels" / f"{name}.txt"
        labels.parent.mkdir(exist_ok=True)
        labels.write_text(f"1 {shares}\n0 0.241667 0.487500 0.183333 0.525\n")
    (tmp_path / "yolo" / "classes.txt").write_text("box\ncup\n")
    me, yolo = opened(tmp_path / "me"), opened(tmp_path / "yolo")
    assert me.format == "LabelMe"
    assert "2 shapes are no polygon," in me.problems[0]
    assert me.has_masks
    assert content(me) == content(yolo)
    cup, box = me.items["train"][0].sample.annotations
    assert cup.box == (5.0, 6.0, 30.0, 26.0)
    assert cup.area == 25 * 20
    assert (box.box, box.mask) == ((9.0, 9.0, 20.0, 30.0), None)


def test_images_of_one_name_and_folders_called_images_are_told_apart(tmp_path: Path) -> None:
    root = tmp_path / "images" / "mine"
    for name in ("a/1", "b/1", "b/2"):
        path = photo(root / f"{name}.png")
        path.with_suffix(".txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (root / "classes.txt").write_text("cup\n")
    data = opened(root, validation_share=0.1)
    assert not data.problems
    train = [item.sample.identifier for item in data.items["train"]]
    assert len(set(train)) == len(train) == 2
    one = LabelledDataConfig(root=root)
    test = DetectConfig().build().read_other(one, root, Vocabulary(("cup",), (0,)))
    assert len({sample.identifier for sample in test.samples}) == 3


def test_masks_that_the_probe_accepts_are_segmented(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "val/c"):
        photo(tmp_path / "images" / f"{name}.jpg")
        mask = np.zeros((40, 60), np.uint8)
        mask[4:20, 5:30], mask[25:30, 5:30], mask[0, 0] = 1, 2, 255
        path = tmp_path / "masks" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)
    (tmp_path / "classes.txt").write_text("background\nworker\nhat\n")
    data = opened(tmp_path)
    assert [len(items) for items in data.items.values()] == [2, 1]
    pixels = pixel_labels(data, "train")
    pixels.present_classes()
    assert pixels.class_names == ("background", "worker", "hat")
    image, labels = pixels.load(0)
    assert image.shape == (3, 40, 60)
    assert labels.unique().tolist() == [0, 1, 2, 255]
    (tmp_path / "classes.txt").write_text("worker\nhat\n")
    with pytest.raises(UserError, match="the class 2, but 2 classes.*write `background`"):
        pixel_labels(opened(tmp_path), "train").present_classes()


CVAT = "# label:color_rgb:parts:actions\r\ncup:0,0,255::\r\nbackground:0,0,0::\r\nhat:9,8,7::\r\n"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
@pytest.mark.parametrize("with_boxes", [False, True])
def test_masks_in_the_colours_of_a_label_map_are_its_classes(
    mode: str, with_boxes: bool, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(0).integers(0, 3, (40, 60)).astype(np.uint8)
    for name in ("a", "b"):
        photo(tmp_path / "JPEGImages" / f"{name}.png")
        mask = Image.fromarray(numbers)
        if mode == "P":  # its numbers are not those of the classes, its colours are
            mask = Image.fromarray(np.where(numbers == 2, 77, numbers + 1).astype(np.uint8), "P")
            mask.putpalette([0, 0, 0, 0, 0, 255, *[0, 0, 0], *[50] * 222, *[9, 8, 7]])
        elif mode != "L":
            mask.putpalette([0, 0, 255, 0, 0, 0, 9, 8, 7])
            mask = mask.convert(mode)
        (tmp_path / "SegmentationClass").mkdir(exist_ok=True)
        mask.save(tmp_path / "SegmentationClass" / f"{name}.png")
        if with_boxes:
            box = "<xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>"
            (tmp_path / "Annotations").mkdir(exist_ok=True)
            (tmp_path / "Annotations" / f"{name}.xml").write_text(
                f"<annotation><object><name>cup</name><bndbox>{box}</bndbox></object></annotation>"
            )
    (tmp_path / "labelmap.txt").write_text(CVAT)
    labels = pixel_labels(opened(tmp_path), "train")
    assert labels.class_names == ("cup", "background", "hat")
    np.testing.assert_array_equal(labels.load(0)[1].numpy(), numbers)


def test_palettes_that_are_no_label_maps_say_nothing(tmp_path: Path) -> None:
    numbers = np.array([[0, 1, 2, 255]], np.uint8)
    for name in ("a", "b"):
        photo(tmp_path / "images" / f"{name}.png", (4, 1))
        (tmp_path / "masks").mkdir(exist_ok=True)
        mask = Image.fromarray(numbers, "P")
        mask.putpalette([0, 0, 0, 0, 0, 255, *range(200), *[9] * 562])
        mask.save(tmp_path / "masks" / f"{name}.png")
    (tmp_path / "labelmap.txt").write_text(CVAT)
    labels = pixel_labels(opened(tmp_path), "train")
    np.testing.assert_array_equal(labels.load(0)[1].numpy(), numbers)
    mask.convert("RGB").save(tmp_path / "masks/a.png")
    mask.convert("RGB").save(tmp_path / "masks/b.png")
    with pytest.raises(UserError, match=r"pixels of the colour \d+,\d+,\d+, which no class"):
        pixel_labels(opened(tmp_path), "train").present_classes()
    (tmp_path / "labelmap.txt").write_text("cup:0,0,0::\nhat:0,0,0::\n")
    with pytest.raises(UserError, match="gives two classes one colour"):
        opened(tmp_path)


def test_keypoints_of_yolo_change_places_in_a_mirror(tmp_path: Path) -> None:
    for name in ("a", "b"):
        photo(tmp_path / "images" / f"{name}.png")
        (tmp_path / "labels").mkdir(exist_ok=True)
        (tmp_path / "labels" / f"{name}.txt").write_text(
            "0 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.6 1 0 0 0\n"
        )
    (tmp_path / "data.yaml").write_text(
        "path: .\ntrain: images\nnames: [fish]\nkpt_shape: [3, 3]\nflip_idx: [1, 0, 2]\n"
    )
    data = opened(tmp_path)
    assert data.keypoint_names == ("left_0", "right_0", "point_2")
    thing = data.items["train"][0].sample.annotations[0]
    assert thing.keypoints == ((23.5, 15.5, 2), (35.5, 23.5, 1), (0.0, 0.0, 0))
    task = KeypointsConfig().build()
    read = task.read(LabelledDataConfig(root=tmp_path))
    assert task.vocabulary(read).keypoint_names == data.keypoint_names
