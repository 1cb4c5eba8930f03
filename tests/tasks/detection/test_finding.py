"""Datasets found by their folder, and what is said when they are not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from clove_ssl.data.scenes import SCENE_CLASSES
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.finding import (
    check_same_classes,
    find_coco,
    find_segmentation_lists,
    find_voc_lists,
    open_coco,
    open_voc,
    parse_voc_lists,
)
from clove_ssl.tasks.detection.scenes import write_coco_scenes, write_voc_scenes

PROTOCOL = ((2007, "trainval"), (2007, "test"), (2012, "trainval"))


def add_lists(root: Path, *lists: tuple[int, str]) -> Path:
    for year, name in lists:
        folder = root / f"VOC{year}" / "ImageSets" / "Main"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text("a\n")
    return root


@pytest.mark.parametrize("below", ["", "VOCdevkit"])
def test_the_published_lists_are_found_where_all_are_there(tmp_path: Path, below: str) -> None:
    add_lists(tmp_path / below, *PROTOCOL, (2007, "val"), (2012, "train"), (2012, "aeroplane_val"))
    assert find_voc_lists(tmp_path) == {
        "train": ((2007, "trainval"), (2012, "trainval")),
        "test": ((2007, "test"),),
    }


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("train", "test"), "train", "test"),
        (("train", "val", "trainval"), "train", "val"),
        (("train", "val", "trainval", "test"), "trainval", "test"),
    ],
)
def test_one_year_has_its_own_lists(
    tmp_path: Path, names: tuple[str, ...], train: str, test: str
) -> None:
    add_lists(tmp_path, *((2012, name) for name in names))
    expected = {"train": ((2012, train),), "test": ((2012, test),)}
    assert find_voc_lists(tmp_path) == expected
    assert find_voc_lists(tmp_path / "VOC2012") == expected


def test_missing_lists_are_named_with_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found: none"):
        find_voc_lists(tmp_path)
    add_lists(tmp_path, (2007, "trainval"), (2012, "trainval"))
    with pytest.raises(UserError, match="found: 2007:trainval, 2012:trainval"):
        find_voc_lists(tmp_path)


def test_lists_can_be_written_as_text() -> None:
    assert parse_voc_lists("2007:trainval, 2012:val") == ((2007, "trainval"), (2012, "val"))
    for text in ("", "2007", "trainval", "2007:", "seven:val"):
        with pytest.raises(UserError, match="such as 2007:trainval"):
            parse_voc_lists(text)


def test_scenes_in_both_layouts_are_found(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_voc_scenes(tmp_path, split, count=2, size=48)
        write_coco_scenes(tmp_path, split, count=2, size=48)
    for split in ("train", "test"):
        assert len(open_voc(tmp_path, split, class_names=SCENE_CLASSES).samples) == 2
        assert len(open_coco(tmp_path, split).samples) == 2
        assert open_coco(tmp_path, split, task="person_keypoints").class_names == ("person",)
    assert find_segmentation_lists(tmp_path) == {"train": "train", "test": "test"}
    named = open_voc(tmp_path, "train", lists=[(2012, "test")], class_names=SCENE_CLASSES)
    assert named.samples[0].identifier == "test_000000"


def write_annotations(path: Path, **extra: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 9, "height": 9}],
        "annotations": [],
        "categories": [{"id": 1, "name": "cup"}],
    }
    path.write_text(json.dumps(content | extra))
    return path


def test_the_official_layout_is_found_and_its_faulty_boxes_are_listed(tmp_path: Path) -> None:
    flat = {"id": 5, "image_id": 1, "category_id": 1, "bbox": [1, 1, 0, 3]}
    for name in ("train2017", "val2017"):
        write_annotations(tmp_path / "annotations" / f"instances_{name}.json", annotations=[flat])
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").touch()
    assert find_coco(tmp_path, "test").images == tmp_path / "val2017"
    (message,) = open_coco(tmp_path, "train").left_out
    assert "Annotation 5" in message
    with pytest.raises(UserError, match="Annotation 5"):
        open_coco(tmp_path, "train", faulty="refuse")


def test_single_paths_win_over_what_is_in_the_folder(tmp_path: Path) -> None:
    own = write_annotations(tmp_path / "labels" / "mine.json")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    both = open_coco(None, "train", annotations=own, images=tmp_path / "photos")
    assert both.class_names == ("cup",)
    (tmp_path / "photos").rename(tmp_path / "train")
    assert open_coco(tmp_path, "train", annotations=own).class_names == ("cup",)
    with pytest.raises(UserError, match="needs a folder"):
        open_coco(None, "train", annotations=own)


def test_a_missing_split_of_coco_is_described(tmp_path: Path) -> None:
    write_annotations(tmp_path / "annotations" / "captions_train2017.json")
    with pytest.raises(UserError, match=r"instances_train2017\.json or .*captions_train2017\.json"):
        open_coco(tmp_path, "train")
    write_annotations(tmp_path / "annotations" / "instances_train2017.json")
    with pytest.raises(UserError, match="its images are not"):
        open_coco(tmp_path, "train")
    with pytest.raises(UserError, match="found annotations: none"):
        find_coco(tmp_path / "nowhere", "test")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        open_coco(None, "train", annotations=tmp_path / "no.json", images=tmp_path)


@pytest.mark.parametrize(
    ("lists", "train"),
    [(("train", "val"), "train"), (("train", "trainaug", "val"), "trainaug")],
)
def test_the_published_list_is_segmented_where_it_is_there(
    tmp_path: Path, lists: tuple[str, ...], train: str
) -> None:
    folder = tmp_path / "VOC2012/ImageSets/Segmentation"
    folder.mkdir(parents=True)
    for name in lists:
        (folder / f"{name}.txt").touch()
    assert find_segmentation_lists(tmp_path) == {"train": train, "test": "val"}


def test_missing_segmentation_lists_are_described(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found: none"):
        find_segmentation_lists(tmp_path)


def test_classes_of_training_and_test_must_be_the_same(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_coco_scenes(tmp_path, split, count=2, size=48)
    train, test = (open_coco(tmp_path, split) for split in ("train", "test"))
    check_same_classes(train, test)
    names = ("target", "box", *train.class_names[2:])
    with pytest.raises(UserError, match="category 2: 'crate' in training, 'box' in the test"):
        check_same_classes(train, dataclasses.replace(test, class_names=names))
    fewer = dataclasses.replace(
        test, class_names=test.class_names[:-1], category_ids=test.category_ids[:-1]
    )
    with pytest.raises(UserError, match="category 10: 'person' in training, none in the test"):
        check_same_classes(train, fewer)
    with pytest.raises(UserError, match="17 keypoints"):
        check_same_classes(train, dataclasses.replace(test, keypoint_names=("nose",)))


def test_the_packs_are_found(data_folder: Path) -> None:
    assert find_voc_lists(data_folder / "voc2012")["train"] == ((2012, "train"),)
    assert find_segmentation_lists(data_folder / "voc2012")["test"] == "test"
    for task, images in (("instances", 143), ("person_keypoints", 132), ("bbox", 347)):
        assert len(open_coco(data_folder / "coco", "test", task=task).samples) == images
    train, test = (open_coco(data_folder / "coco", split) for split in ("train", "test"))
    check_same_classes(train, test)
