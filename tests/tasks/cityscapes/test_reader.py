"""Reading Cityscapes: both kinds of label files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.files.denied_folders import deny_listing
from PIL import Image

from clove_ssl.data.labels.mask_folders import CityscapesLabels
from clove_ssl.errors import UserError
from clove_ssl.tasks.cityscapes.maps import (
    LABELS,
    THINGS,
    VOID,
    paint_polygons,
    read_instance_map,
    read_polygons,
)
from clove_ssl.tasks.cityscapes.reader import read_cityscapes
from clove_ssl.tasks.cityscapes.scenes import (
    cityscapes_scene_labels,
    read_cityscapes_scenes,
    write_cityscapes_scenes,
)
from clove_ssl.tasks.labels.rle import decode_mask
from clove_ssl.tasks.loading.images import check_images

SQUARE = [[1, 1], [6, 1], [6, 4], [1, 4]]
Edit = Callable[[dict[str, Any]], None]


def write(root: Path, *objects: dict[str, Any], height: int = 10, width: int = 20) -> Path:
    """One image of a split called val; gives its file of polygons."""
    image = root / "leftImg8bit/val/ulm/ulm_000000_000019_leftImg8bit.png"
    labels = root / "gtFine/val/ulm/ulm_000000_000019_gtFine_polygons.json"
    for path in (image, labels):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(image)
    content = {"imgHeight": height, "imgWidth": width, "objects": list(objects)}
    labels.write_text(json.dumps(content))
    return labels


def thing(label: str, polygon: Any = SQUARE, **more: Any) -> dict[str, Any]:
    return {"label": label, "polygon": polygon, **more}


def test_a_thing_is_what_can_be_seen_of_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        thing("car"),
        thing("sky", [[3, 0], [19, 0], [19, 9], [3, 9]]),
        thing("person", [[10, 2], [12, 2], [12, 8], [10, 8]]),
        thing("cargroup", [[15, 5], [18, 5], [18, 8], [15, 8]]),
        thing("bus", [[0, 0], [1, 0], [1, 1]], deleted=1),
        thing("license plate"),
        thing("caravan", [[0, 9], [2, 9], [0, 9]]),
    )
    dataset = read_cityscapes(tmp_path, "val")
    (sample,) = dataset.samples
    assert (sample.identifier, sample.height, sample.width) == ("ulm_000000_000019", 10, 20)
    group, person, car = sample.annotations
    assert group.crowd
    assert group.identifier == THINGS["car"]
    assert not car.crowd
    assert car.box == (1, 1, 3, 5)
    assert car.area == 8
    assert dataset.class_names[person.category] == "person"
    assert person.box == (10, 2, 13, 9)
    assert decode_mask(person.mask).sum() == 21
    assert dataset.category_ids[person.category] == 24


def test_labels_are_those_of_the_official_table() -> None:
    table = pytest.importorskip("cityscapesscripts.helpers.labels").labels
    assert {label.name: label.id for label in table} == LABELS
    assert {label.name for label in table if label.ignoreInEval} == set(VOID)
    scored = [label.name for label in table if label.hasInstances and not label.ignoreInEval]
    assert scored == list(THINGS)


def test_polygons_are_drawn_as_by_the_official_tool(tmp_path: Path) -> None:
    tool = pytest.importorskip("cityscapesscripts.preparation.json2instanceImg")
    from cityscapesscripts.helpers.annotation import Annotation

    write_cityscapes_scenes(tmp_path, "test", count=6, size=64)
    for index in range(6):
        path = cityscapes_scene_labels(tmp_path, "test", index)
        annotation = Annotation()
        annotation.fromJsonFile(str(path))
        expected = np.array(tool.createInstanceImage(annotation, "ids"))
        np.testing.assert_array_equal(paint_polygons(read_polygons(path)), expected)


def test_both_kinds_of_label_files_say_the_same(tmp_path: Path) -> None:
    write_cityscapes_scenes(tmp_path, "train", count=6, size=64)
    polygons = read_cityscapes_scenes(tmp_path, "train")
    instances = read_cityscapes_scenes(tmp_path, "train", labels="instances")
    assert polygons.samples == instances.samples
    assert any(each.crowd for sample in polygons.samples for each in sample.annotations)
    assert all(path.name.endswith("instanceIds.png") for path in polygons.truth.values())
    check_images(polygons.samples)
    pixels, labels = CityscapesLabels(tmp_path, "train").load(0)
    assert pixels.shape[1:] == labels.shape


def test_polygons_judge_scores_where_nothing_else_is_there(tmp_path: Path) -> None:
    path = write(tmp_path, thing("car"))
    assert read_cityscapes(tmp_path, "val").truth == {"ulm_000000_000019": path}


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (thing("unicorn"), "Object 0 of .*polygons.json has an unknown label.*unicorn"),
        (thing("car", [[1, 1], [40, 1], [6, 4]]), "leaves its image of 20 x 10 pixels by 20"),
        (thing("car", [[1, -9], [4, 1], [6, 4]]), "leaves its image of 20 x 10 pixels by 9"),
        (thing("car", [[1, 1], [4, 1]]), "expected 3 corners"),
        (thing("car", None), "expected 3 corners"),
        (thing("car", [[1, 1], [4, "x"], [3, 3]]), r"corner \[4, 'x'\]"),
        ({"polygon": SQUARE}, "has no label"),
    ],
)
def test_faulty_objects_are_named_or_left_out(
    tmp_path: Path, faulty: dict[str, Any], message: str
) -> None:
    write(tmp_path, faulty, thing("car"))
    with pytest.raises(UserError, match=message):
        read_cityscapes(tmp_path, "val")
    dataset = read_cityscapes(tmp_path, "val", faulty="leave out")
    assert len(dataset.left_out) == 1
    assert len(dataset.samples[0].annotations) == 1


def test_an_image_without_labels_is_named(tmp_path: Path) -> None:
    write(tmp_path, thing("car")).unlink()
    with pytest.raises(UserError, match=r"1 of 1 images have no label file.*--task.labels inst"):
        read_cityscapes(tmp_path, "val")


def test_labels_of_another_size_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, thing("car"))
    path.write_text(path.read_text().replace('"imgWidth": 20', '"imgWidth": 30'))
    with pytest.raises(UserError, match="20 x 10 pixels, but its annotation says 30 x 10"):
        check_images(read_cityscapes(tmp_path, "val").samples)


@pytest.mark.parametrize("text", ["{", "[]", '{"imgHeight": 0, "imgWidth": 3}', "{}"])
def test_damaged_files_of_polygons_are_named(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, thing("car"))
    path.write_text(text)
    with pytest.raises(UserError, match=r"polygons\.json"):
        read_cityscapes(tmp_path, "val")


def test_damaged_maps_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a_gtFine_instanceIds.png"
    for numbers, message in (
        (np.full((4, 4), 34000, np.uint16), "instance id 34000"),
        (np.full((4, 4), 11005, np.uint16), "instance id 11005"),
        (np.zeros((4, 4, 3), np.uint8), "no single channel"),
    ):
        Image.fromarray(numbers).save(path)
        with pytest.raises(UserError, match=message):
            read_instance_map(path)
    path.write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot be read"):
        read_instance_map(path)


def test_a_city_that_may_not_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cityscapes_scenes(tmp_path, "train", count=2, size=64)
    (city,) = (tmp_path / "leftImg8bit/train").iterdir()
    deny_listing(city, monkeypatch)
    with pytest.raises(UserError, match="Cannot list the folder"):
        read_cityscapes(tmp_path, "train")
    with pytest.raises(UserError, match="Cannot list the folder"):
        CityscapesLabels(tmp_path, "train")


def test_folders_that_are_no_cityscapes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder leftImg8bit"):
        read_cityscapes(tmp_path, "val")
    write(tmp_path, thing("car"))
    with pytest.raises(UserError, match="Known: val"):
        read_cityscapes(tmp_path, "train")
    (tmp_path / "leftImg8bit/train").mkdir()
    with pytest.raises(UserError, match="holds no image that ends in"):
        read_cityscapes(tmp_path, "train")
