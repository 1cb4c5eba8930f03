"""Rules of Cityscapes' scores one by one, and its format of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clove_ssl.errors import UserError
from clove_ssl.tasks.cityscapes.maps import THINGS
from clove_ssl.tasks.cityscapes.reader import CityscapesDataset, read_cityscapes
from clove_ssl.tasks.cityscapes.scores import score_cityscapes
from clove_ssl.tasks.cityscapes.task import read_results, write_results
from clove_ssl.tasks.labels.rle import encode_mask, write_counts

SIZE = (40, 60)
NAME = "ulm_000000_000019"


def rectangle(x0: int, y0: int, x1: int, y1: int) -> list[list[int]]:
    """A polygon of the pixels from x0, y0 up to, not including, x1, y1."""
    return [[x0, y0], [x1 - 1, y0], [x1 - 1, y1 - 1], [x0, y1 - 1]]


def street(root: Path, **objects: list[list[int]]) -> CityscapesDataset:
    """An image of road with objects by label; a digit at the end of a label does not count."""
    image = root / f"leftImg8bit/val/ulm/{NAME}_leftImg8bit.png"
    labels = root / f"gtFine/val/ulm/{NAME}_gtFine_polygons.json"
    for path in (image, labels):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", SIZE[::-1]).save(image)
    drawn = [{"label": "road", "polygon": rectangle(0, 0, SIZE[1], SIZE[0])}]
    drawn += [{"label": k.rstrip("0123456789"), "polygon": v} for k, v in objects.items()]
    content = {"imgHeight": SIZE[0], "imgWidth": SIZE[1], "objects": drawn}
    labels.write_text(json.dumps(content))
    return read_cityscapes(root, "val")


def found(x0: int, y0: int, x1: int, y1: int, *, score: float, label: str = "car") -> Any:
    mask = np.zeros(SIZE, bool)
    mask[y0:y1, x0:x1] = True
    return {
        "image_id": NAME,
        "category_id": THINGS[label],
        "score": score,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "segmentation": {"size": list(SIZE), "counts": write_counts(encode_mask(mask).counts)},
    }


def car_ap50(dataset: CityscapesDataset, *records: Any) -> float:
    return score_cityscapes(dataset, records).by_class()["car"]["AP50"]


CAR = (0, 0, 20, 20)


def test_a_found_instance_scores_one_and_classes_without_instances_nothing(tmp_path: Path) -> None:
    scores = score_cityscapes(street(tmp_path, car=rectangle(*CAR)), [found(*CAR, score=0.4)])
    assert scores.summary() == {"AP": 1.0, "AP50": 1.0}
    assert np.isnan(scores.by_class()["bus"]["AP"])
    assert scores.objects.tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert scores.curves[2].recall == (0.0, 1.0)


def test_a_second_detection_of_an_instance_is_wrong(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR), car2=rectangle(30, 0, 50, 20))
    pair = [found(*CAR, score=0.9), found(30, 0, 50, 20, score=0.5)]
    assert car_ap50(dataset, *pair) == pytest.approx(1)
    assert car_ap50(dataset, *pair, found(*CAR, score=0.7)) < 1


def test_strays_on_the_road_are_wrong_but_not_on_void_or_groups(tmp_path: Path) -> None:
    shapes = {"car": rectangle(*CAR), "static": rectangle(30, 0, 50, 15)}
    dataset = street(tmp_path, **shapes, cargroup=rectangle(30, 20, 50, 35))
    right = found(*CAR, score=0.5)
    assert car_ap50(dataset, right, found(0, 25, 20, 40, score=0.9)) < 1
    assert car_ap50(dataset, right, found(31, 1, 50, 14, score=0.9)) == pytest.approx(1)
    assert car_ap50(dataset, right, found(31, 21, 50, 34, score=0.9)) == pytest.approx(1)


def test_small_instances_are_neither_demanded_nor_punished(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR), car2=rectangle(40, 0, 49, 11))  # 99 pixels
    assert score_cityscapes(dataset, []).objects.sum() == 1
    right = found(*CAR, score=0.5)
    assert car_ap50(dataset, right, found(40, 0, 49, 11, score=0.9)) == pytest.approx(1)


def test_missed_instances_and_empty_masks_score_zero(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR))
    assert car_ap50(dataset) == 0
    assert car_ap50(dataset, found(5, 5, 5, 5, score=0.9)) == 0


def test_an_ignored_detection_alone_scores_zero(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR), static=rectangle(30, 0, 50, 15))
    assert car_ap50(dataset, found(31, 1, 50, 14, score=0.9)) == 0


def test_results_survive_their_files(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR))
    records = [found(*CAR, score=1 / 3), found(1, 2, 9, 10, score=0.1, label="bus")]
    write_results(tmp_path / "out", records, samples=dataset.samples)
    assert read_results(tmp_path / "out", samples=dataset.samples) == records
    lines = (tmp_path / "out" / f"{NAME}_pred.txt").read_text().splitlines()
    assert lines[0] == f"masks/{NAME}_000_car.png 26 {1 / 3!r}"


def test_faulty_results_are_named(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR))
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"_pred\.txt cannot be read"):
        read_results(out, samples=dataset.samples)
    write_results(out, [found(*CAR, score=0.5)], samples=dataset.samples)
    Image.new("1", (3, 3)).save(out / f"masks/{NAME}_000_car.png")
    with pytest.raises(UserError, match="3 x 3 pixels, but its image 60 x 40"):
        read_results(out, samples=dataset.samples)
    for line in (b"one two", b"m.png inf 0.5", b"m.png \xff 0.5"):
        (out / f"{NAME}_pred.txt").write_bytes(line)
        with pytest.raises(UserError, match=r"has the line '.+'; expected a mask, a label id"):
            read_results(out, samples=dataset.samples)


def test_truth_of_another_size_is_named(tmp_path: Path) -> None:
    dataset = street(tmp_path, car=rectangle(*CAR))
    path = dataset.truth[NAME]
    path.write_text(path.read_text().replace('"imgWidth": 60', '"imgWidth": 61'))
    with pytest.raises(UserError, match="61 x 40 pixels, but its image 60 x 40"):
        score_cityscapes(dataset, [])
