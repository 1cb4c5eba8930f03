"""Sides, anchors and heads follow the images, their objects and the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clove_ssl.tasks.base import TaskData
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample
from clove_ssl.tasks.own.config import DetectConfig, OwnDetectionConfig


def data(side: int, object_side: int, *, wide: float = 1.5) -> TaskData:
    thing = Annotation((0.0, 0.0, float(object_side), float(object_side)), 0, object_side**2)
    sample = Sample(Path("a.jpg"), "a", round(wide * side), side, (thing,))
    dataset = DetectionDataset((sample,), ("cup",), (0,))
    return TaskData(dataset, dataset, 1, 1, ("cup",))


def adapted(read: TaskData, *, on_gpu: bool, **changes: object) -> OwnDetectionConfig:
    config = replace(DetectConfig(), **changes)  # type: ignore[arg-type]
    found = config.build().adapted(read, on_gpu=on_gpu)
    assert isinstance(found, OwnDetectionConfig)
    return found


@pytest.mark.parametrize(
    ("side", "object_side", "on_gpu", "expected", "first_anchor"),
    [
        (3000, 600, True, 800, 32),  # a camera's photo is reduced
        (480, 100, True, 480, 32),  # what fits stays
        (480, 8, True, 800, 16),  # specks are enlarged
        (100, 40, True, 320, 32),
        (3000, 600, False, 320, 32),
        (256, 16, False, 256, 16),
    ],
)
def test_the_side_follows_images_objects_and_device(
    side: int, object_side: int, on_gpu: bool, expected: int, first_anchor: int
) -> None:
    config = adapted(data(side, object_side), on_gpu=on_gpu)
    assert (config.test_side, config.side) == (expected, expected)
    assert config.detector.proposals.anchor_sizes[0] == first_anchor
    assert min(config.train_sides) < expected < max(config.train_sides)
    assert max(config.train_sides) <= config.longest <= 2 * max(config.train_sides)
    assert (config.detector.box.regions_per_image < 256) == (not on_gpu)
    assert (config.detector.keypoint.width < 512) == (not on_gpu)
    again = config.build().adapted(data(side, object_side), on_gpu=on_gpu)
    assert again == config


def test_what_was_asked_for_stays() -> None:
    config = adapted(data(480, 100), on_gpu=True, side=640, train_sides=(600,), longest=900)
    assert (config.test_side, config.train_sides, config.longest) == (640, (600,), 900)
