"""Predictions survive their files, and files that are no predictions are refused."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import RLE, decode_mask, read_counts
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.predictions import (
    detection_records,
    header_path,
    read_detections,
    read_label_maps,
    write_detections,
    write_label_maps,
)
from clove_ssl.tasks.rcnn.instances import ImageDetections

SAMPLES = [Sample(Path("b.jpg"), "b", 20, 10, ()), Sample(Path("a.jpg"), "a", 20, 10, ())]


def found(count: int = 3) -> ImageDetections:
    generator = torch.Generator().manual_seed(count)
    corners = torch.rand(count, 2, 2, generator=generator) * 8
    return ImageDetections(
        boxes=corners.cumsum(1).flatten(1),
        scores=torch.rand(count, generator=generator),
        classes=torch.arange(count) % 2,
        masks=torch.rand(count, 10, 20, generator=generator) < 0.5,
        keypoints=torch.rand(count, 4, 3, generator=generator) * 9,
    )


def test_records_hold_exactly_what_was_found() -> None:
    detections = found()
    records = detection_records(detections, SAMPLES[0], category_ids=(7, 90))
    assert [record["image_id"] for record in records] == ["b"] * 3
    assert [record["category_id"] for record in records] == [7, 90, 7]
    for number, record in enumerate(records):
        x, y, width, height = record["bbox"]
        assert [x, y, x + width, y + height] == detections.boxes[number].tolist()
        assert record["score"] == detections.scores[number].item()
        runs = RLE(*record["segmentation"]["size"], read_counts(record["segmentation"]["counts"]))
        np.testing.assert_array_equal(decode_mask(runs), detections.masks[number].numpy())
        points = np.reshape(record["keypoints"], (4, 3)) + [0.5, 0.5, 0]  # pixels to places
        np.testing.assert_allclose(points, detections.keypoints[number], rtol=1e-6)


def test_what_was_not_predicted_is_not_written() -> None:
    some = found()
    plain = ImageDetections(some.boxes, some.scores, some.classes)
    assert set(detection_records(plain, SAMPLES[0], category_ids=(0, 1))[0]) == {
        "image_id",
        "category_id",
        "bbox",
        "score",
    }


def test_files_read_back_and_do_not_depend_on_who_predicted(tmp_path: Path) -> None:
    mine = detection_records(found(2), SAMPLES[0], category_ids=(7, 90))
    theirs = detection_records(found(3), SAMPLES[1], category_ids=(7, 90))
    path = tmp_path / "deep" / "predictions.json"
    write_detections(path, [*mine, *theirs], samples=SAMPLES, header={"seed": 4})
    before = path.read_bytes()
    again = read_detections(path)
    assert again.records == [*mine, *theirs]
    assert again.header["seed"] == 4
    assert (again.header["images"], again.header["detections"]) == (2, 5)
    write_detections(path, [*theirs, *mine], samples=SAMPLES, header={})
    assert path.read_bytes() == before


def test_no_detections_are_an_empty_list(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    write_detections(path, [], samples=SAMPLES, header={})
    assert read_detections(path).records == []


def test_files_of_others_need_no_header(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps([{"image_id": 1}]))
    assert read_detections(path).header == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ('{"images": []}', "no list of detections"), ("[3]", "no list of")],
)
def test_files_that_are_no_detections_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "predictions.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_detections(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_detections(tmp_path / "nothing.json")


def test_a_file_that_its_header_does_not_describe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    write_detections(path, [], samples=SAMPLES, header={})
    path.write_text("[{}]")
    with pytest.raises(UserError, match=r"predictions\.header\.json"):
        read_detections(path)
    header_path(path).write_text("{")
    with pytest.raises(UserError, match="is no JSON"):
        read_detections(path)


def test_a_header_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "found.json"
    write_detections(path, [], samples=[], header={})

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UserError, match=r"found\.header\.json cannot be read: Permission denied"):
        read_detections(path)


def test_class_maps_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    maps = {name: rng.integers(0, 21, (5, 7), dtype=np.uint8) for name in ("2007_01", "file", "b")}
    path = tmp_path / "predictions.npz"
    write_label_maps(path, maps, header={"task": "voc-semantic"})
    again = read_label_maps(path)
    assert list(again) == list(maps)
    for name in maps:
        np.testing.assert_array_equal(again[name], maps[name])
    path.write_bytes(b"PK nothing")
    header_path(path).unlink()
    with pytest.raises(UserError, match="no file of class maps"):
        read_label_maps(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Predictions cannot be written to .*file"):
        write_detections(tmp_path / "file" / "p.json", [], samples=SAMPLES, header={})
    with pytest.raises(UserError, match="Predictions cannot be written to .*file"):
        write_label_maps(tmp_path / "file" / "p.npz", {}, header={})
