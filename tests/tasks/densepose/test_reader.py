"""DensePose-COCO's files: what is read, what is refused, and built-in figures as such files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.tasks.tiny_densepose import scenes
from PIL import Image

from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.tasks.densepose.labels import SIDE, runs_of
from clove_ssl.tasks.densepose.reader import (
    find_densepose,
    labels_of,
    open_densepose,
    read_densepose,
)
from clove_ssl.tasks.labels.rle import encode_mask

Change = Callable[[dict[str, Any]], None]


def person(**changes: Any) -> dict[str, Any]:
    mask = np.zeros((SIDE, SIDE), bool)
    mask[100:200, 50:150] = True
    entry = {
        "id": 1,
        "image_id": 7,
        "category_id": 1,
        "bbox": [2, 3, 20, 30],
        "area": 600,
        "dp_masks": [[], {"size": [SIDE, SIDE], "counts": runs_of(mask)}, *[[]] * 12],
        "dp_x": [60.0, 255.5],
        "dp_y": [110.0, 0.0],
        "dp_I": [1.0, 24.0],
        "dp_U": [0.25, 1.0],
        "dp_V": [0.5, 0.0],
    }
    return {name: value for name, value in (entry | changes).items() if value is not None}


def write(folder: Path, persons: list[dict[str, Any]], name: str = "densepose_train.json") -> Path:
    (folder / "train").mkdir(parents=True, exist_ok=True)
    (folder / "annotations").mkdir(exist_ok=True)
    Image.new("RGB", (40, 50)).save(folder / "train/a.png")
    content = {
        "images": [{"id": 7, "file_name": "a.png", "width": 40, "height": 50}],
        "annotations": persons,
        "categories": [{"id": 1, "name": "person"}],
    }
    path = folder / "annotations" / name
    path.write_text(json.dumps(content))
    return path


def test_labels_are_read_as_they_stand_in_the_file(tmp_path: Path) -> None:
    unlabelled = {"id": 2, **dict.fromkeys(("dp_x", "dp_y", "dp_I", "dp_U", "dp_V", "dp_masks"))}
    write(tmp_path, [person(), person(**unlabelled)])
    dataset = open_densepose(tmp_path, "train")
    first, second = dataset.samples[0].annotations
    labels = labels_of(first)
    assert labels is not None
    assert labels_of(second) is None
    assert dataset.labelled == 1
    assert labels.points.tolist() == [[60.0, 110.0], [255.5, 0.0]]
    assert labels.places.parts.tolist() == [1, 24]
    assert labels.places.surface.tolist() == [[0.25, 0.5], [1.0, 0.0]]
    mask = labels.mask()
    assert mask is not None
    assert mask.sum() == 10_000
    assert mask[100:200, 50:150].all()


def test_masks_of_several_regions_become_one(tmp_path: Path) -> None:
    left, right = np.zeros((2, SIDE, SIDE), bool)
    left[:, :10], right[:, 5:20] = True, True
    uncompressed = {"size": [SIDE, SIDE], "counts": list(encode_mask(right).counts)}
    masks = [{"size": [SIDE, SIDE], "counts": runs_of(left)}, [], uncompressed]
    write(tmp_path, [person(dp_masks=masks)])
    labels = labels_of(open_densepose(tmp_path, "train").samples[0].annotations[0])
    assert labels is not None
    np.testing.assert_array_equal(labels.mask(), left | right)


@pytest.mark.parametrize("masks", [None, [], [[]] * 14, {}])
def test_points_without_masks_are_labels_too(tmp_path: Path, masks: Any) -> None:
    write(tmp_path, [person(dp_masks=masks)])
    labels = labels_of(open_densepose(tmp_path, "train").samples[0].annotations[0])
    assert labels is not None
    assert labels.mask() is None


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"dp_masks": [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]}, "has polygons in dp_masks; expected up to 14"),
    ({"dp_masks": "RLE"}, "has dp_masks of type str"),
    ({"dp_masks": ["RLE"]}, "has str in dp_masks"),
    ({"dp_masks": [[]] * 13 + [[], []]}, "has 15 dp_masks"),
    ({"dp_masks": [{"size": [50, 40], "counts": "abc"}]}, r"mask of size \[50, 40\]"),
    ({"dp_masks": [{"size": SIDE, "counts": "abc"}]}, "mask of size 256 in dp_masks"),
    ({"dp_masks": [{"size": [SIDE, SIDE], "counts": "\u00e9"}]}, "has damaged runs in dp_masks"),
    ({"dp_masks": [{"size": [SIDE, SIDE], "counts": [3, 4]}]}, "runs of 7 pixels in a mask of 256"),
    ({"dp_masks": [{"size": [SIDE, SIDE], "counts": None}]}, "has damaged runs in dp_masks"),
    ({"dp_x": None}, "has dp_y, but no dp_x"),
    ({"dp_x": [1.0]}, "has 1 of dp_x, 2 of dp_y"),
    ({"dp_I": [25.0, 1.0]}, "has the dp_I 25; expected 0 to 24"),
    ({"dp_I": [1.5, 1.0]}, "has a dp_I that is no whole number"),
    ({"dp_U": [float("nan"), 0.1]}, "expected a list of finite numbers"),
    ({"dp_V": "0.5"}, "expected a list of finite numbers"),
    ({"dp_V": [[0.5], [0.5]]}, "expected a list of finite numbers"),
    ({"dp_x": [-3.0, 1.0]}, "has the dp_x -3; expected 0 to 256"),
    ({"bbox": [40, 3, 0.5, 30]}, "has a bbox outside its image"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_faulty_labels_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write(tmp_path, [person(**change)])
    with pytest.raises(UserError, match=f"Annotation 1 of {path}.*{message}"):
        open_densepose(tmp_path, "train")


def test_of_faulty_labels_the_person_is_kept_where_that_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path, [person(dp_x=[1.0])])
    dataset = read_densepose(path, tmp_path / "train", faulty="leave out")
    (kept,) = dataset.samples[0].annotations
    assert labels_of(kept) is None
    assert "1 of dp_x" in dataset.left_out[0]


def test_other_classes_than_persons_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [person()])
    content = json.loads(path.read_text())
    content["categories"].append({"id": 2, "name": "dog"})
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="has 2 categories .*person, dog"):
        read_densepose(path, tmp_path / "train")


def test_the_official_files_are_found_and_joined(tmp_path: Path) -> None:
    for name in ("train2014", "val2014"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 50)).save(tmp_path / name / "a.png")
    write(tmp_path, [person()], "densepose_train2014.json")
    other = write(tmp_path, [person()], "densepose_coco_2014_valminusminival.json")
    write(tmp_path, [person()], "densepose_minival2014.json")
    with pytest.raises(UserError, match="list the same image twice"):
        open_densepose(tmp_path, "train")
    other.write_text(other.read_text().replace('"id": 7', '"id": 8').replace('d": 7', 'd": 8'))
    assert len(open_densepose(tmp_path, "train").samples) == 2
    assert [each.images.name for each in find_densepose(tmp_path, "test")] == ["val2014"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="densepose_minival2014.json or densepose_coco_2014_minival"
    ):
        open_densepose(tmp_path, "test")
    with pytest.raises(UserError, match="--data.test-annotations with --data.test-images"):
        open_densepose(None, "test", images=tmp_path)
    write(tmp_path, [person()], "densepose_test.json")
    with pytest.raises(UserError, match="its images are not"):
        open_densepose(tmp_path, "test")


def test_a_real_annotation_is_read(data_folder: Path) -> None:
    sample = data_folder / "densepose_sample"
    dataset = read_densepose(sample / "annotations/densepose_sample.json", sample / "images")
    labels = labels_of(dataset.samples[0].annotations[0])
    assert labels is not None
    assert len(labels.points) == 125
    assert set(labels.places.parts.tolist()) <= set(range(1, 25))
    assert labels.points.max() < 256


def test_labels_of_figures_are_those_of_their_pixels(tmp_path: Path) -> None:
    dataset = scenes(tmp_path, count=8, size=96)
    assert 0 < dataset.labelled < sum(len(sample.annotations) for sample in dataset.samples)
    source = SceneSource(8, 96)
    for index, sample in enumerate(dataset.samples):
        scene = source.scene(index)
        for found in sample.annotations:
            labels = labels_of(found)
            if labels is None:
                continue
            x0, y0, x1, y1 = found.box
            columns, rows = (labels.points * (x1 - x0, y1 - y0) / 256 + (x0, y0)).astype(int).T
            np.testing.assert_array_equal(scene.parts[rows, columns], labels.places.parts)
            np.testing.assert_allclose(scene.surface[rows, columns], labels.places.surface)


def test_scenes_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        scenes(tmp_path / name, count=3)
    files = [tmp_path / name / "annotations/densepose_train.json" for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
