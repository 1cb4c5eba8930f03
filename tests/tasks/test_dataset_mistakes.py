"""Mistakes that people make in their own datasets and predictions, and what they are told."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clove_ssl.data.labels.pixels import VOCLabels
from clove_ssl.errors import UserError
from clove_ssl.tasks.cityscapes.maps import read_polygons
from clove_ssl.tasks.cityscapes.reader import read_cityscapes
from clove_ssl.tasks.densepose.reader import open_densepose, read_densepose
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.detection.finding import find_segmentation_lists, open_coco, open_voc
from clove_ssl.tasks.detection.voc import read_voc
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.lvis.reader import open_lvis
from clove_ssl.tasks.predictions import header_path, read_detections, read_label_maps
from clove_ssl.tasks.scoring.results import check_results

DEEP = "[" * 100_000
CONTENT: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}],
    "categories": [{"id": 2, "name": "person", "keypoints": ["head", "foot"]}],
    "annotations": [{"id": 7, "image_id": 1, "category_id": 2, "bbox": [4, 2, 8, 6]}],
}
XML = (
    "<annotation><size><width>20</width><height>10</height></size><object><name>{name}</name>"
    "<bndbox><xmin>2</xmin><ymin>2</ymin><xmax>{xmax}</xmax><ymax>9</ymax></bndbox></object>"
    "</annotation>"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one image of 20 x 10 pixels."""
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    return tmp_path


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """VOC's layout with one image of 20 x 10 pixels, for boxes and for classes of pixels."""
    root = tmp_path / "VOC2012"
    lists = [root / "ImageSets" / kind for kind in ("Main", "Segmentation")]
    for part in (root / "JPEGImages", root / "Annotations", root / "SegmentationClass", *lists):
        part.mkdir(parents=True)
    for part in lists:
        (part / "train.txt").write_text("a\n")
    Image.new("RGB", (20, 10)).save(root / "JPEGImages" / "a.jpg")
    Image.new("P", (20, 10)).save(root / "SegmentationClass" / "a.png")
    (root / "Annotations" / "a.xml").write_text(XML.format(name="dog", xmax=9))
    return tmp_path


def read(folder: Path, part: str = "annotations", **fields: Any) -> DetectionDataset:
    """Read the content with other fields in the only entry of a part."""
    content = copy.deepcopy(CONTENT)
    content[part][0] |= fields
    return read_text(folder, json.dumps(content))


def read_text(folder: Path, text: str, **options: Any) -> DetectionDataset:
    path = folder / "labels.json"
    path.write_text(text, encoding="utf-8")
    return read_coco(path, folder, **options)


def read_boxes(root: Path) -> DetectionDataset:
    return read_voc(root, [(2012, "train")])


def read_classes(root: Path) -> VOCLabels:
    return VOCLabels(root, "train")


def segmentation_list(root: Path) -> Path:
    return root / "VOC2012/ImageSets/Segmentation/train.txt"


@pytest.mark.parametrize(("kind", "read"), [("Main", read_boxes), ("Segmentation", read_classes)])
def test_lists_must_be_utf_8_and_may_have_its_mark(
    voc: Path, kind: str, read: Callable[[Path], Any]
) -> None:
    path = voc / "VOC2012/ImageSets" / kind / "train.txt"
    path.write_text("a\n", encoding="utf-16")
    with pytest.raises(UserError, match=r"train\.txt is no text in UTF-8.*save the list"):
        read(voc)
    path.write_text("a\n", encoding="utf-8-sig")
    assert read(voc)


@pytest.mark.parametrize("encoding", ["klingon", "utf-7", "shift_jis", "idna"])
def test_xml_of_odd_encodings_is_refused_by_name(voc: Path, encoding: str) -> None:
    path = voc / "VOC2012/Annotations/a.xml"
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?>{path.read_text()}')
    with pytest.raises(UserError, match=r"a\.xml is no XML"):
        read_boxes(voc)


def test_json_that_is_too_deep_is_refused_and_a_mark_of_utf_8_is_none_of_it(folder: Path) -> None:
    with pytest.raises(UserError, match=r"labels\.json has too many lists inside one another"):
        read_text(folder, DEEP)
    with pytest.raises(UserError, match="labels.json is no JSON"):
        read_polygons(folder / "labels.json")
    marked = f"\ufeff{json.dumps(CONTENT)}"
    assert read_text(folder, marked).class_names == ("person",)
    assert read_densepose(folder / "labels.json", folder).class_names == ("person",)


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_a_header_without_fields_is_refused_with_the_way_on(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs" / "a" / "predictions" / "detections.json"
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    header_path(path).write_text(text)
    with pytest.raises(UserError, match=rf"no header.* type: clove resume {tmp_path}/runs/a$"):
        read_detections(path)


def test_predictions_that_are_too_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(DEEP)
    with pytest.raises(UserError, match="mine.json is no JSON.*clove resume RUN"):
        read_detections(tmp_path / "mine.json")


def test_class_maps_of_text_and_files_of_one_array_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "classes.npz"
    np.savez(path, a=np.array([["dog", "cat"]]))
    with pytest.raises(UserError, match=r"has values of type <U3 for a; expected a class"):
        read_label_maps(path)
    with path.open("wb") as file:
        np.save(file, np.zeros((2, 2), np.uint8))
    with pytest.raises(UserError, match="no file of class maps: it is one array"):
        read_label_maps(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bbox": "1234"}, "has the bbox '1234'; expected a list of numbers"),
        ({"bbox": ["1", "2", "3", "4"]}, "expected a list of numbers"),
        ({"bbox": [True, 2, 3, 4]}, "expected a list of numbers"),
        ({"segmentation": ["123456"]}, "has the polygon '123456'; expected a list of numbers"),
        (
            {"segmentation": [[1, 1, 1e7, 1, 1, 5]]},
            "leaves its image of 20 x 10 pixels by 9.99998e",
        ),
        ({"keypoints": [9999, 3, 2, 0, 0, 0]}, "keypoint 0 at 9999, 3, which leaves its image"),
        ({"keypoints": [0, 0, 0, 3, -9999, 1]}, "keypoint 1 at 3, -9999, which leaves"),
        ({"keypoints": [1, 1, 1.5, 0, 0, 0]}, "visibility 1.5 at keypoint 0"),
        ({"area": "big"}, "has the area 'big'; expected one number"),
        ({"area": [4]}, r"has the area \[4\]; expected one number"),
        ({"area": 10**400}, "has the area 10.*expected one number"),
    ],
)
def test_values_that_cannot_be_right_are_refused(
    folder: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(folder, **fields)


def test_keypoints_may_be_rounded_out_of_the_image_and_hidden_ones_anywhere(folder: Path) -> None:
    keypoints = [20.5, -1, 2, 9999, 9999, 0]
    (sample,) = read(folder, keypoints=keypoints).samples
    assert sample.annotations[0].keypoints == ((20.5, -1.0, 2), (9999.0, 9999.0, 0))


def test_polygons_may_go_on_beyond_the_edge(folder: Path) -> None:
    assert read(folder, segmentation=[[4, 2, 25, 2, 25, 14]]).samples[0].annotations[0].mask


def test_a_truth_value_is_no_class_of_a_prediction() -> None:
    record = {"image_id": 1, "category_id": True, "score": 0.5, "bbox": [1, 1, 2, 2]}
    with pytest.raises(UserError, match="category_id True"):
        check_results([record], images={1: (10, 20)}, categories=[1], kind="box")


@pytest.mark.parametrize("faulty", ["refuse", "leave out"])
def test_a_wrong_size_is_told_from_wrong_boxes(folder: Path, voc: Path, faulty: Any) -> None:
    content = copy.deepcopy(CONTENT)
    content["images"][0]["width"] = 6
    with pytest.raises(UserError, match=r"Image 1 of .* 6 x 10 pixels, but the file has 20 x 10"):
        read_text(folder, json.dumps(content), faulty=faulty)
    path = voc / "VOC2012/Annotations/a.xml"
    path.write_text(path.read_text().replace("<width>20", "<width>6"))
    with pytest.raises(UserError, match=r"a\.xml gives .* 6 x 10 pixels, but the file has 20 x 10"):
        read_voc(voc, [(2012, "train")], faulty=faulty)


def test_images_that_are_shown_turned_have_either_size(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (10, 20)).save(tmp_path / "a.png", exif=exif)
    with pytest.raises(UserError, match="leaves its image of 20 x 10"):
        read(tmp_path, bbox=[4, 2, 90, 6])


OPENERS: list[Callable[[Path], Any]] = [
    lambda root: open_coco(root, "train"),
    lambda root: open_voc(root, "train"),
    lambda root: open_voc(root, "train", lists=[(2012, "train")]),
    lambda root: open_lvis(root, "train"),
    lambda root: open_densepose(root, "train"),
    lambda root: read_cityscapes(root, "train"),
    find_segmentation_lists,
    read_classes,
]


@pytest.mark.parametrize("opener", OPENERS)
def test_a_folder_that_is_none_is_said_so(tmp_path: Path, opener: Callable[[Path], Any]) -> None:
    with pytest.raises(UserError, match="nope does not exist.*correct --data"):
        opener(tmp_path / "nope")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file, not a folder"):
        opener(tmp_path / "file")


def test_the_option_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Give --data\.test-images, or --data FOLDER"):
        open_coco(None, "test", annotations=tmp_path / "a.json")
    with pytest.raises(UserError, match=r"Give --data\.train-annotations, or"):
        open_coco(None, "train", images=tmp_path)


def test_a_file_without_images_is_not_said_to_be_for_learning(folder: Path) -> None:
    with pytest.raises(UserError, match="lists no image. Give a file that lists some"):
        read_text(folder, json.dumps(CONTENT | {"images": []}))


@pytest.mark.parametrize("name", [None, 5, "", ["a.png"]])
def test_a_file_name_that_is_none_is_the_fault_of_its_entry(folder: Path, name: Any) -> None:
    with pytest.raises(UserError, match="Image 1 of .* has the file_name .* Correct the entry"):
        read(folder, "images", file_name=name)


def test_leaving_everything_out_is_refused(folder: Path, voc: Path) -> None:
    content = copy.deepcopy(CONTENT)
    content["annotations"][0]["bbox"] = [4, 2, 0, 6]
    path = folder / "labels.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="All 1 annotations of .* none is left; the first: Anno"):
        open_coco(None, "train", annotations=path, images=folder, faulty="leave out")
    (voc / "VOC2012/Annotations/a.xml").write_text(XML.format(name="dog", xmax=1))
    with pytest.raises(UserError, match="All 1 annotations of .* none is left"):
        open_voc(voc, "train", lists=[(2012, "train")], faulty="leave out")


@pytest.mark.parametrize(
    ("name", "message"),
    [("dgo", "'dgo'. Did you mean 'dog'.* Correct the file"), (" ", "without a <name>.* Correct")],
)
def test_a_class_that_voc_does_not_have_comes_with_the_way_on(
    voc: Path, name: str, message: str
) -> None:
    (voc / "VOC2012/Annotations/a.xml").write_text(XML.format(name=name, xmax=9))
    with pytest.raises(UserError, match=f"{message}.*clove finetune detect"):
        read_boxes(voc)


def test_a_list_names_an_image_once(voc: Path) -> None:
    segmentation_list(voc).write_text("a\nb\na\n")
    with pytest.raises(UserError, match=r"train\.txt lists a twice"):
        read_classes(voc)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("images", "Images 1 and 9 of .* have the same file_name 'a.png'"),
        ("categories", "Categories 2 and 9 of .* have the same name 'person'"),
    ],
)
def test_two_entries_of_one_name_are_refused(folder: Path, part: str, message: str) -> None:
    content = copy.deepcopy(CONTENT)
    content[part].append(content[part][0] | {"id": 9})
    with pytest.raises(UserError, match=message):
        read_text(folder, json.dumps(content))
