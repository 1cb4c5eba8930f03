"""Reading LVIS: where its images lie, what is known about them, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from clove_ssl.errors import UserError
from clove_ssl.tasks.lvis.reader import KnownClasses, LVISDataset, open_lvis, read_lvis
from clove_ssl.tasks.lvis.scenes import read_lvis_scenes, write_lvis_scenes

CONTENT: dict[str, Any] = {
    "images": [
        {
            "id": 8,
            "coco_url": "http://images.example/val2017/000000000008.jpg",
            "width": 20,
            "height": 10,
            "neg_category_ids": [7],
            "not_exhaustive_category_ids": [2],
        }
    ],
    "categories": [
        {"id": 7, "name": "zebra", "frequency": "f"},
        {"id": 2, "name": "axe", "frequency": "r"},
    ],
    "annotations": [
        {
            "id": 1,
            "image_id": 8,
            "category_id": 2,
            "bbox": [4, 2, 8, 6],
            "area": 24.5,
            "segmentation": [[4.0, 2.0, 12.0, 2.0, 12.0, 8.0]],
        }
    ],
}


def write(
    folder: Path, content: dict[str, Any], *, image: str = "val2017/000000000008.jpg"
) -> Path:
    (folder / image).parent.mkdir(parents=True, exist_ok=True)
    (folder / image).touch()
    path = folder / "annotations" / "lvis_v1_val.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def changed(part: str, **fields: Any) -> dict[str, Any]:
    content = copy.deepcopy(CONTENT)
    entry = content[part][0]
    for name, value in fields.items():
        if value is None:
            del entry[name]
        else:
            entry[name] = value
    return content


def test_classes_are_numbered_by_their_ids_everywhere(tmp_path: Path) -> None:
    dataset = read_lvis(write(tmp_path, CONTENT), tmp_path)
    assert isinstance(dataset, LVISDataset)
    assert dataset.class_names == ("axe", "zebra")
    assert dataset.frequencies == ("r", "f")
    assert dataset.known == {8: KnownClasses(absent=frozenset({1}), incomplete=frozenset({0}))}
    (sample,) = dataset.samples
    assert sample.image == tmp_path / "val2017/000000000008.jpg"
    assert sample.annotations[0].category == 0
    assert not sample.annotations[0].crowd


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "val2017/000000000008.jpg"),
        ({}, "images/val2017/000000000008.jpg"),
        ({}, "000000000008.jpg"),
        ({"coco_url": None, "file_name": "COCO_val2014_000000000008.jpg"}, "val/000000000008.jpg"),
        ({"coco_url": None, "file_name": "000000000008.jpg"}, "images/val/000000000008.jpg"),
        ({"coco_url": None, "file_name": "000000000008.jpg"}, "val2017/000000000008.jpg"),
    ],
)
def test_images_are_found_where_both_versions_put_them(
    tmp_path: Path, fields: dict[str, Any], place: str
) -> None:
    write(tmp_path, changed("images", **fields), image=place)
    dataset = open_lvis(tmp_path, "test")
    assert dataset.samples[0].image == tmp_path / place


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("images", neg_category_ids=None), "Image 8 .* has no list neg_category_ids"),
        (
            changed("images", not_exhaustive_category_ids=None),
            "Image 8 .* has no list not_exhaustive_category_ids",
        ),
        (changed("images", neg_category_ids=[7, 99]), "has 99 in neg_category_ids"),
        (changed("images", neg_category_ids=[[7]]), r"has \[7\] in neg_category_ids"),
        (changed("images", not_exhaustive_category_ids=[1]), "has 1 in not_exhaustive_category"),
        (changed("images", coco_url=None), "neither coco_url nor file_name"),
        (changed("categories", frequency=None), "without a frequency of r, c or f"),
        (changed("categories", frequency="often"), "without a frequency of r, c or f"),
        (changed("annotations", category_id=3), "Annotation 1 .* category_id 3"),
    ],
)
def test_faults_are_named(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_lvis(write(tmp_path, content), tmp_path)


def test_absent_images_and_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, CONTENT)
    (tmp_path / "val2017/000000000008.jpg").unlink()
    with pytest.raises(UserError, match="the first is val2017/000000000008.jpg"):
        read_lvis(path, tmp_path)
    with pytest.raises(UserError, match=r"no train split of LVIS.* found: lvis_v1_val.json"):
        open_lvis(tmp_path, "train")
    with pytest.raises(UserError, match="--data.test-annotations FILE"):
        open_lvis(None, "test", annotations=path)


def test_real_labels_have_all_classes_of_their_version(data_folder: Path) -> None:
    for split, images, objects in (("train", 68, 727), ("test", 20, 132)):
        dataset = open_lvis(data_folder / "coco", split)
        assert len(dataset.class_names) == len(dataset.frequencies) == 1230
        assert len(dataset.samples) == images
        assert sum(len(sample.annotations) for sample in dataset.samples) == objects
        assert all(thing.mask for sample in dataset.samples for thing in sample.annotations)
        assert any(judged.incomplete for judged in dataset.known.values())


def test_scenes_know_what_is_absent_and_what_is_incomplete(tmp_path: Path) -> None:
    write_lvis_scenes(tmp_path, "test", count=8, size=48)
    dataset = read_lvis_scenes(tmp_path, "test")
    assert set(dataset.frequencies) == {"r", "c", "f"}
    assert any(judged.incomplete for judged in dataset.known.values())
    for sample in dataset.samples:
        present = {thing.category for thing in sample.annotations}
        judged = dataset.known[sample.identifier]
        assert not judged.absent & present
        assert judged.incomplete <= present
        assert judged.absent | present != set(range(len(dataset.class_names)))
