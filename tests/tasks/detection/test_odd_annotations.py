"""Whatever stands in a file of annotations or predictions, it is read or refused in words."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.detection.voc import read_voc
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.loading.selection import select_targets
from clove_ssl.tasks.loading.targets import PackedObjects
from clove_ssl.tasks.predictions import read_detections
from clove_ssl.tasks.scoring.judging import score_predictions

CONTENT: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "a.png", "width": 20, "height": 10}],
    "categories": [{"id": 2, "name": "person", "keypoints": ["nose", "tail"]}],
    "annotations": [
        {
            "id": 7,
            "image_id": 1,
            "category_id": 2,
            "bbox": [4, 2, 8, 6],
            "area": 24.5,
            "iscrowd": 0,
            "segmentation": [[4.0, 2.0, 12.0, 2.0, 12.0, 8.0]],
            "keypoints": [5, 3, 2, 0, 0, 0],
        },
        {
            "id": 8,
            "image_id": 1,
            "category_id": 2,
            "bbox": [4, 2, 8, 6],
            "segmentation": {"size": [10, 20], "counts": [50, 100, 50]},
        },
    ],
}
odd = st.sampled_from(
    [None, True, -1, 0, 1, 2.5, 1e308, float("nan"), float("inf"), "", "7", "é", [], [None]]
    + [[1, 2], {}, {"a": 1}, [[]], [{}], 10**30]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in inner:
        found.append((*path, key))
        if isinstance(part, dict | list):
            found += places(part, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    copied = copy.deepcopy(value)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return copied


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    return tmp_path


def use(dataset: DetectionDataset) -> None:
    for labels in ("boxes", "masks", "keypoints"):
        selected = select_targets(dataset, labels).dataset
        list(PackedObjects(selected.samples, labels, keypoints=len(dataset.keypoint_names)))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(places(CONTENT)), new=odd)
def test_odd_values_in_coco_files_are_read_or_refused(
    folder: Path, path: tuple[Any, ...], new: Any
) -> None:
    file = folder / "labels.json"
    file.write_text(json.dumps(changed(CONTENT, path, new)))
    with suppress(UserError):
        use(read_coco(file, folder))


FIELDS = {"width": "20", "height": "10", "name": "dog", "difficult": "0"} | {
    corner: "2" if corner.endswith("min") else "9" for corner in ("xmin", "ymin", "xmax", "ymax")
}
XML = (
    "<annotation><size><width>{width}</width><height>{height}</height></size><object>"
    "<name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{xmin}</xmin>"
    "<ymin>{ymin}</ymin><xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox></object></annotation>"
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.sampled_from(sorted(FIELDS)),
    text=st.sampled_from(["", "nan", "inf", "-1", "0", "1e30", "3.7", "x", "é", "<a/>", "</size>"]),
)
def test_odd_texts_in_voc_files_are_read_or_refused(folder: Path, field: str, text: str) -> None:
    root = folder / "VOC2007"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "JPEGImages" / "a.jpg").touch()
    (root / "ImageSets" / "Main" / "val.txt").write_text("a\n")
    (root / "Annotations" / "a.xml").write_text(XML.format(**(FIELDS | {field: text})))
    with suppress(UserError):
        dataset = read_voc(folder, [(2007, "val")])
        assert all(thing.area > 0 for thing in dataset.samples[0].annotations)


RECORD = {
    "image_id": 1,
    "category_id": 2,
    "score": 0.5,
    "bbox": [4, 2, 8, 6],
    "segmentation": {"size": [10, 20], "counts": "b1T3b1"},
    "keypoints": [5, 3, 2, 0, 0, 0],
}


@pytest.mark.parametrize("kind", ["voc", "box", "mask", "keypoints"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(places(RECORD)), new=odd)
def test_odd_values_in_predictions_are_scored_or_refused(
    folder: Path, kind: str, path: tuple[Any, ...], new: Any
) -> None:
    pytest.importorskip("faster_coco_eval")
    labels, found = folder / "labels.json", folder / "found.json"
    labels.write_text(json.dumps(CONTENT))
    found.write_text(json.dumps([changed(RECORD, path, new)]))
    dataset = read_coco(labels, folder)
    with suppress(UserError):
        score_predictions([kind], dataset, read_detections(found), sigmas=[0.1, 0.1])
