"""Reading COCO's format: every kind of annotation, and every fault it may have."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.labels.rle import RLE, decode_mask
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset

POLYGON = [4.0, 2.0, 12.0, 2.0, 12.0, 8.0]
CONTENT: dict[str, Any] = {
    "images": [
        {"id": 8, "file_name": "b.jpg", "width": 20, "height": 10},
        {"id": 3, "file_name": "sub/a.jpg", "width": 4, "height": 3},
    ],
    "categories": [
        {"id": 90, "name": "brush"},
        {"id": 2, "name": "person", "keypoints": ["head", "foot"]},
    ],
    "annotations": [
        {
            "id": 70,
            "image_id": 8,
            "category_id": 2,
            "bbox": [4, 2, 8, 6],
            "area": 24.5,
            "iscrowd": 0,
            "segmentation": [POLYGON],
            "keypoints": [5, 3, 2, 0, 0, 0],
            "num_keypoints": 1,
        },
        {"id": 60, "image_id": 8, "category_id": 90, "bbox": [0.5, 1, 2, 3]},
    ],
}


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Write annotations and empty images to a folder."""
    for entry in content["images"]:
        path = folder / "images" / entry["file_name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = folder / "labels.json"
    path.write_text(json.dumps(content))
    return path


def read(folder: Path, content: dict[str, Any], **options: Any) -> DetectionDataset:
    return read_coco(write(folder, content), folder / "images", **options)


def changed(**fields: Any) -> dict[str, Any]:
    """The content with other fields in annotation 70; None takes one out."""
    content = copy.deepcopy(CONTENT)
    entry = content["annotations"][0] | fields
    content["annotations"][0] = {k: v for k, v in entry.items() if v is not None}
    return content


def test_everything_an_annotation_says_is_read(tmp_path: Path) -> None:
    dataset = read(tmp_path, CONTENT)
    empty, full = dataset.samples
    assert (empty.identifier, empty.annotations) == (3, ())
    assert empty.image == tmp_path / "images" / "sub" / "a.jpg"
    assert full.annotations == (
        Annotation((0.5, 1.0, 2.5, 4.0), 1, 6.0, identifier=60),
        Annotation(
            (4.0, 2.0, 12.0, 8.0),
            0,
            24.5,
            identifier=70,
            mask=(tuple(POLYGON),),
            keypoints=((5.0, 3.0, 2), (0.0, 0.0, 0)),
        ),
    )


def test_category_numbers_with_gaps_become_classes_and_go_back(tmp_path: Path) -> None:
    dataset = read(tmp_path, CONTENT)
    assert dataset.class_names == ("person", "brush")
    assert dataset.category_ids == (2, 90)
    assert [dataset.class_of(number) for number in (2, 90)] == [0, 1]
    assert dataset.keypoint_names == ("head", "foot")


@pytest.mark.parametrize("counts", [[4, 3, 5], "435"])
def test_runs_are_read_as_numbers_and_as_text(tmp_path: Path, counts: Any) -> None:
    rle = {"size": [3, 4], "counts": counts}
    content = changed(
        image_id=3, bbox=[1, 0, 2, 3], segmentation=rle, iscrowd=1, keypoints=[0, 0, 0] * 2
    )
    (thing,) = read(tmp_path, content).samples[0].annotations
    assert thing.crowd
    assert isinstance(thing.mask, RLE)
    expected = [[0, 0, 1, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    np.testing.assert_array_equal(decode_mask(thing.mask).astype(int), expected)


def test_an_empty_segmentation_is_no_mask(tmp_path: Path) -> None:
    things = read(tmp_path, changed(segmentation=[])).samples[1].annotations
    assert things[1].mask is None


def test_a_class_without_keypoint_names_may_have_any_number_of_them(tmp_path: Path) -> None:
    content = changed(category_id=90, keypoints=[1, 2, 1] * 5)
    assert len(read(tmp_path, content).samples[1].annotations[1].keypoints or ()) == 5


FAULTS = [
    ({"bbox": [4, 2, 0, 6]}, "a bbox without area"),
    ({"bbox": [4, 2, 8, -1]}, "a bbox without area"),
    ({"bbox": [4, 2, 18, 6]}, "leaves its image of 20 x 10 pixels by 2"),
    ({"bbox": [-1.5, 2, 8, 6]}, "by 1.5"),
    ({"bbox": [4, 2, 8]}, "expected x, y, width, height"),
    ({"bbox": [4, 2, 8, float("nan")]}, "finite"),
    ({"bbox": None}, "bbox None; expected a list of numbers"),
    ({"area": -2}, "area -2"),
    ({"keypoints": [5, 3, 2]}, "3 keypoint numbers; expected 6"),
    ({"keypoints": [5, 3, 3, 0, 0, 0]}, "visibility 3 at keypoint 0"),
    ({"segmentation": [[1, 2, 3, 4]]}, "polygon of 4 numbers"),
    ({"segmentation": [[1, 2, 3, 4, 5, 6, 7]]}, "polygon of 7 numbers"),
    ({"segmentation": "mask"}, "segmentation of type str"),
    ({"segmentation": {"size": [10, 20], "counts": [5, 6]}}, "damaged RLE: runs of 11 pixels"),
    ({"segmentation": {"size": [10, 20], "counts": [0.5, 199.5]}}, "damaged RLE: counts are"),
    ({"segmentation": {"size": [10, 20], "counts": "~"}}, "damaged RLE"),
    ({"segmentation": {"size": [20, 10], "counts": [200]}}, "RLE of size"),
]


@pytest.mark.parametrize(("fields", "message"), FAULTS)
def test_a_faulty_annotation_is_refused_with_file_and_number(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, changed(**fields))
    assert f"Annotation 70 of {tmp_path / 'labels.json'} has" in str(caught.value)
    assert message in str(caught.value)


def test_faulty_annotations_can_be_left_out_and_are_listed(tmp_path: Path) -> None:
    dataset = read(tmp_path, changed(bbox=[4, 2, 0, 6]), faulty="leave out")
    assert [thing.identifier for thing in dataset.samples[1].annotations] == [60]
    (message,) = dataset.left_out
    assert "Annotation 70" in message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_id": 4}, "Annotation 70 of .* has image_id 4"),
        ({"category_id": 3}, "Annotation 70 of .* has category_id 3"),
        ({"image_id": None}, "without 'image_id'"),
        ({"id": 60}, "two entries with annotation id 60"),
    ],
)
def test_annotations_that_point_nowhere_or_share_a_number_are_always_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, changed(**fields), faulty="leave out")


def with_text_ids(write_id: Callable[[int], str]) -> dict[str, Any]:
    """The content with every id as text."""
    content = copy.deepcopy(CONTENT)
    for entry in (entry for part in content.values() for entry in part):
        for field in entry.keys() & {"id", "image_id", "category_id"}:
            entry[field] = write_id(entry[field])
    return content


def test_ids_that_are_written_as_text_are_the_numbers_they_show(tmp_path: Path) -> None:
    assert read(tmp_path, with_text_ids(str)) == read(tmp_path, CONTENT)
    assert read(tmp_path, changed(image_id="8", category_id="2")) == read(tmp_path, CONTENT)


@pytest.mark.parametrize("shown", ["image {}", "0{}", " {}", "{}" + 5000 * "0", "{}.0", "²{}"])
def test_other_text_is_no_id_and_the_cure_is_told(tmp_path: Path, shown: str) -> None:
    with pytest.raises(UserError, match="whole number; number all entries, and what refers"):
        read(tmp_path, with_text_ids(shown.format))


@pytest.mark.parametrize("name", [None, "", " ", ["person"], {}, True])
def test_a_class_without_a_name_is_refused(tmp_path: Path, name: object) -> None:
    content = copy.deepcopy(CONTENT)
    content["categories"][0]["name"] = name
    with pytest.raises(UserError, match=r"Category 90 of .* has the name .*; expected text"):
        read(tmp_path, content)
    content["categories"][1]["name"] = name  # two of them are not merely alike
    with pytest.raises(UserError, match=r"Category \d+ of .* has the name .*; expected text"):
        read(tmp_path, content)


@pytest.mark.parametrize("part", ["images", "categories"])
def test_two_entries_with_one_number_are_refused(tmp_path: Path, part: str) -> None:
    content = copy.deepcopy(CONTENT)
    content[part].append(dict(content[part][0]))
    with pytest.raises(UserError, match="labels.json has two entries"):
        read(tmp_path, content)


def test_missing_images_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, CONTENT)
    (tmp_path / "images" / "b.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of 2 images .* the first is b\.jpg"):
        read_coco(path, tmp_path / "images")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lists no image"):
        read(tmp_path, CONTENT | {"images": [], "annotations": []})
    path = tmp_path / "labels.json"
    path.write_text("[]")
    with pytest.raises(UserError, match="has no list 'images'"):
        read_coco(path, tmp_path)
    path.write_text("{")
    with pytest.raises(UserError, match="is no JSON"):
        read_coco(path, tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        read_coco(tmp_path / "nothing.json", tmp_path)


@pytest.mark.parametrize(
    ("name", "images", "objects", "classes"),
    [
        ("bbox_train", 1050, 9370, 80),
        ("bbox_test", 347, 3195, 80),
        ("instances_train", 401, 3473, 80),
        ("instances_test", 143, 1287, 80),
        ("person_keypoints_train", 426, 1761, 1),
        ("person_keypoints_test", 132, 545, 1),
        ("person_keypoints_extra_test", 78, 212, 1),
        ("lvis_v0.5_train", 68, 727, 1230),
    ],
)
def test_real_files_have_the_counts_of_their_description(
    data_folder: Path, name: str, images: int, objects: int, classes: int
) -> None:
    split = name.rsplit("_", 1)[1]
    root = data_folder / "coco"
    dataset = read_coco(root / "annotations" / f"{name}.json", root / "images" / split)
    found = [thing for sample in dataset.samples for thing in sample.annotations]
    assert (len(dataset.samples), len(found), len(dataset.class_names)) == (
        images,
        objects,
        classes,
    )


def test_real_persons_have_the_keypoints_of_their_description(data_folder: Path) -> None:
    root = data_folder / "coco"
    path = root / "annotations" / "person_keypoints_train.json"
    dataset = read_coco(path, root / "images" / "train")
    found = [thing for sample in dataset.samples for thing in sample.annotations]
    labelled = [any(v for _, _, v in thing.keypoints or ()) for thing in found]
    assert sum(labelled) == 1027
    assert len(dataset.keypoint_names) == 17


def test_real_crowds_are_masks_of_about_their_area(data_folder: Path) -> None:
    root = data_folder / "coco"
    dataset = read_coco(root / "annotations" / "instances_train.json", root / "images" / "train")
    crowds = [thing for s in dataset.samples for thing in s.annotations if thing.crowd]
    assert crowds
    for thing in crowds:
        assert isinstance(thing.mask, RLE)
        rows, columns = np.nonzero(decode_mask(thing.mask))
        x0, y0, x1, y1 = thing.box
        assert columns.min() >= x0 - 2
        assert rows.min() >= y0 - 2
        assert columns.max() <= x1 + 1
        assert rows.max() <= y1 + 1
