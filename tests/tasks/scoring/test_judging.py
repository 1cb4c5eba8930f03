"""Scores of whole datasets: what they say, their files and their tables."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builders.labels.small_datasets import random_dataset
from hypothesis import given
from hypothesis import strategies as st

from clove_ssl.data.scenes import SceneSource
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco_scores import coco_truth, score_coco
from clove_ssl.tasks.detection.scenes import read_coco_scenes, write_coco_scenes
from clove_ssl.tasks.labels.rle import write_counts
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample
from clove_ssl.tasks.predictions import Predictions, detection_records
from clove_ssl.tasks.rcnn.instances import ImageDetections
from clove_ssl.tasks.scoring.judging import score_label_maps, score_predictions
from clove_ssl.tasks.scoring.scores import (
    Curve,
    Scores,
    ScoreTable,
    console_lines,
    read_scores,
    write_scores,
)

pytest.importorskip("faster_coco_eval")


def as_predicted(dataset: DetectionDataset) -> list[dict[str, Any]]:
    """All objects, found exactly, in COCO's result format."""
    truth = coco_truth(dataset)
    names = {number: s.identifier for number, s in enumerate(dataset.samples, start=1)}
    return [
        entry | {"image_id": names[entry["image_id"]], "score": 0.9}
        for entry in truth["annotations"]
        if not entry["iscrowd"]
    ]


def voc_like(dataset: DetectionDataset) -> DetectionDataset:
    samples = tuple(
        dataclasses.replace(sample, identifier=f"2007_{sample.identifier}")
        for sample in dataset.samples
    )
    return dataclasses.replace(dataset, samples=samples)


@pytest.fixture
def dataset(tmp_path: Path) -> DetectionDataset:
    return random_dataset(tmp_path / "images", images=12)


def test_perfect_predictions_score_one_by_every_rule(tmp_path: Path) -> None:
    named = voc_like(random_dataset(tmp_path, images=12, runs=True))
    scores = score_predictions(
        ["voc", "box", "mask", "keypoints"], named, Predictions(as_predicted(named))
    )
    assert [table.name for table in scores.tables] == [
        *("voc", "voc_area", "box", "mask", "keypoints")
    ]
    found = scores.by_name()
    for name in ("voc", "voc_area", "box", "mask"):
        assert found[f"{name}_AP"] == pytest.approx(1.0)
        assert found[f"{name}_AP75"] == pytest.approx(1.0)
    assert found["keypoints_AP"] > 0.99
    assert scores.headline == ("voc_AP", pytest.approx(1.0))
    assert scores.images == 12


def test_scores_of_a_dataset_are_those_of_its_file(tmp_path: Path) -> None:
    write_coco_scenes(tmp_path, "test", count=8, size=96)
    truth = json.loads((tmp_path / "annotations" / "instances_test.json").read_text())
    dataset = read_coco_scenes(tmp_path, "test")
    rng = np.random.default_rng(0)
    records = [
        entry | {"score": float(rng.random())} for entry in copy.deepcopy(truth["annotations"])
    ]
    for record in records[::3]:
        record["bbox"] = (np.array(record["bbox"]) * rng.uniform(0.8, 1.2)).tolist()
    for kind in ("box", "mask"):
        expected = score_coco(truth, records, kind=kind)
        (table,) = score_predictions([kind], dataset, Predictions(records)).tables
        assert table.summary == pytest.approx(expected.summary(), nan_ok=True)
        for name, found in expected.by_class().items():
            mine = dict(table.by_class[name])
            count = sum(e["category_id"] == dataset.class_names.index(name) + 1 for e in records)
            assert mine.pop("objects") == count
            assert mine == pytest.approx(found, nan_ok=True)


def test_detections_in_places_of_the_image_score_as_files_of_pixels(tmp_path: Path) -> None:
    write_coco_scenes(tmp_path, "test", count=8, size=96)
    dataset = read_coco_scenes(tmp_path, "test", task="person_keypoints")
    records = []
    for number, sample in enumerate(dataset.samples):
        scene = SceneSource(8, 96, "test").scene(number)
        persons = [thing for thing in scene.objects if thing.keypoints is not None]
        if persons:
            found = ImageDetections(
                boxes=torch.tensor([thing.box for thing in persons]),
                scores=torch.ones(len(persons)),
                classes=torch.zeros(len(persons), dtype=torch.int64),
                masks=torch.from_numpy(np.stack([thing.mask for thing in persons])),
                keypoints=torch.from_numpy(np.stack([thing.keypoints for thing in persons])),
            )
            records += detection_records(found, sample, category_ids=dataset.category_ids)
    scores = score_predictions(["box", "mask", "keypoints"], dataset, Predictions(records))
    for name in ("box_AP", "mask_AP", "keypoints_AP"):
        assert scores.by_name()[name] == pytest.approx(1.0)


def test_difficult_objects_are_neither_demanded_nor_punished(dataset: DetectionDataset) -> None:
    samples = tuple(
        dataclasses.replace(
            s, annotations=tuple(dataclasses.replace(t, difficult=True) for t in s.annotations)
        )
        if number % 2
        else s
        for number, s in enumerate(dataset.samples)
    )
    mixed = dataclasses.replace(dataset, samples=samples)
    everything = as_predicted(dataset)
    only_easy = as_predicted(mixed)
    assert len(only_easy) < len(everything)
    for records in (everything, only_easy):
        found = score_predictions(["voc", "box"], mixed, Predictions(records)).by_name()
        assert found["voc_AP"] == pytest.approx(1.0)
        assert found["box_AP"] == pytest.approx(1.0)


def test_sizes_of_voc_count_their_own_objects(tmp_path: Path) -> None:
    small = Annotation((0.0, 0.0, 10.0, 10.0), 0, 100.0)
    large = Annotation((0.0, 20.0, 150.0, 150.0), 0, 19500.0)
    dataset = DetectionDataset(
        (Sample(tmp_path, "a", 200, 200, (small, large)),), ("cup", "hat"), (0, 1)
    )
    found = {"image_id": "a", "category_id": 0, "bbox": [0, 20, 150, 130], "score": 0.5}
    stray = found | {"bbox": [100, 0, 10, 10], "score": 0.9}
    scores = score_predictions(["voc"], dataset, Predictions([found, stray]))
    cup = scores.tables[0].by_class["cup"]
    assert cup["APl"] == pytest.approx(1.0)
    assert cup["APs"] == 0
    assert math.isnan(cup["APm"])
    assert cup["objects"] == 2
    assert scores.tables[0].curves["cup"] == Curve((0.0, 0.5), (0.0, 0.5))
    assert "hat" not in scores.tables[0].curves


@pytest.mark.parametrize("kind", ["voc", "box"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 99}, "image_id 99"),
        ({"category_id": 99}, "category_id 99"),
        ({"score": float("nan")}, "score nan"),
        ({"bbox": None}, "Prediction 0 has no bbox"),
    ],
)
def test_predictions_that_belong_elsewhere_are_refused(
    dataset: DetectionDataset, kind: str, change: dict[str, Any], message: str
) -> None:
    record = {k: v for k, v in (as_predicted(dataset)[0] | change).items() if v is not None}
    with pytest.raises(UserError, match=message):
        score_predictions([kind], dataset, Predictions([record]))


def test_masks_as_polygons_and_boxes_of_three_numbers_are_refused(
    dataset: DetectionDataset,
) -> None:
    (record, *_) = as_predicted(dataset)
    with pytest.raises(UserError, match="expected an RLE"):
        score_predictions(["mask"], dataset, Predictions([record]))
    with pytest.raises(UserError, match="expected x, y, width, height"):
        score_predictions(["voc"], dataset, Predictions([record | {"bbox": [1, 2, 3]}]))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (write_counts((50, 100)), "runs of 150 pixels"),
        (write_counts((2400, 100)), "runs of 2500 pixels"),
        ("P", "end in the middle"),
        ([2400], "expected compressed counts"),
    ],
)
def test_damaged_masks_are_refused_before_they_hang_the_evaluator(
    dataset: DetectionDataset, counts: object, message: str
) -> None:
    record = as_predicted(dataset)[0] | {"segmentation": {"size": [40, 60], "counts": counts}}
    with pytest.raises(UserError, match=message):
        score_predictions(["mask"], dataset, Predictions([record]))


def test_predictions_of_another_number_of_images_are_refused(dataset: DetectionDataset) -> None:
    with pytest.raises(UserError, match="of 5 images, but the test set has 12"):
        score_predictions(["voc"], dataset, Predictions([], {"images": 5}))


def test_nothing_found_scores_zero(dataset: DetectionDataset) -> None:
    found = score_predictions(["voc", "box", "mask"], dataset, Predictions([])).by_name()
    assert found["voc_AP"] == found["box_AP"] == found["mask_AP50"] == 0


def test_class_maps_are_scored_by_all_their_pixels() -> None:
    truth = torch.tensor([[0, 0, 1], [1, 255, 2]])
    right, wrong = truth.clone(), torch.zeros_like(truth)
    right[1, 1] = 0
    scores = score_label_maps([(truth, right), (truth, wrong)], ("sky", "cup", "hat", "tie"))
    (table,) = scores.tables
    assert table.by_class["sky"]["IoU"] == pytest.approx(4 / 7)
    assert table.by_class["cup"]["IoU"] == pytest.approx(0.5)
    assert math.isnan(table.by_class["tie"]["IoU"])
    assert table.summary["mIoU"] == pytest.approx((4 / 7 + 0.5 + 0.5) / 3)
    assert table.summary["accuracy"] == pytest.approx(0.7)
    assert scores.images == 2


@given(seed=st.integers(0, 2**32), classes=st.integers(1, 6))
def test_class_maps_score_as_sets_of_pixels(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), 5, 7)  # images, H, W
    truth = np.where(rng.random(shape) < 0.2, 255, rng.integers(0, classes, shape))
    predicted = np.where(rng.random(shape) < 0.5, truth, rng.integers(0, classes, shape))
    predicted = np.where(predicted == 255, 0, predicted)
    pairs = [
        (torch.from_numpy(t), torch.from_numpy(p)) for t, p in zip(truth, predicted, strict=True)
    ]
    (table,) = score_label_maps(pairs, [f"class {k}" for k in range(classes)]).tables
    expected = []
    for k in range(classes):
        mine = {place for place in np.ndindex(shape) if truth[place] == k}
        judged = {place for place in np.ndindex(shape) if truth[place] != 255}
        found = {place for place in judged if predicted[place] == k}
        iou = table.by_class[f"class {k}"]["IoU"]
        if mine | found:
            expected.append(len(mine & found) / len(mine | found))
            assert iou == pytest.approx(expected[-1])
        else:
            assert math.isnan(iou)
    assert table.summary["mIoU"] == pytest.approx(sum(expected) / max(1, len(expected)))


SCORES = Scores(
    (
        ScoreTable(
            "box",
            "COCO average precision",
            {"AP": 0.12345, "APs": math.nan},
            {"cup": {"AP": 0.5, "objects": 12.0}, "a|b": {"AP": math.nan, "objects": 0.0}},
            {"cup": Curve((0.0, 0.5), (1.0, 0.25))},
        ),
    ),
    images=1234,
)


def test_files_read_back_and_are_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "scores.json"
    write_scores(path, SCORES)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    content = json.loads(path.read_text(), parse_constant=refuse)
    assert content["images"] == SCORES.images
    again = read_scores(path)
    assert repr(again) == repr(SCORES)  # NaN equals nothing, not even itself


def test_files_that_are_no_scores_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    with pytest.raises(UserError, match="clove score"):
        read_scores(path)
    for text in ("{", "[]", '{"tables": [3], "images": 1}', '{"tables": []}'):
        path.write_text(text)
        with pytest.raises(UserError, match="is no file of scores"):
            read_scores(path)


def test_tables_are_in_percent_and_legible() -> None:
    lines = list(console_lines(SCORES, classes=True))
    assert lines[0] == "box: COCO average precision, 1,234 images"
    assert len({len(line) for line in lines[1:3]}) == 1
    assert lines[2].split() == ["12.35", "–"]  # 12.345 rounds up in binary
    assert lines[-2].split() == ["cup", "50.00", "12"]
