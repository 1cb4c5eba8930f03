"""Parts of the training images: nested, the same for everybody, with every class if possible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.runs.tiny_finetuning import tiny_finetuning
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.tasks.base import Task, TaskData
from clove_ssl.tasks.detection.scenes import write_coco_scenes
from clove_ssl.tasks.own.fractions import covering_order, draw_part

shown_classes = st.lists(st.frozensets(st.integers(0, 6)), min_size=1, max_size=30)
shares = st.floats(0, 1, exclude_min=True)
seeds = st.integers(0, 2**32)


@given(shown_classes, st.lists(shares, min_size=2, max_size=5), seeds)
def test_a_larger_part_holds_every_smaller_one(
    present: list[frozenset[int]], several: list[float], seed: int
) -> None:
    parts = [draw_part(present, share, seed=seed) for share in sorted(several)]
    for share, part in zip(sorted(several), parts, strict=True):
        assert len(part.indices) == max(1, round(share * len(present)))
        assert list(part.indices) == sorted(set(part.indices))
    for smaller, larger in zip(parts, parts[1:], strict=False):
        assert set(smaller.indices) <= set(larger.indices)
        assert set(larger.missing) <= set(smaller.missing)


@given(shown_classes, shares, seeds)
def test_every_class_is_shown_where_there_are_as_many_images_as_classes(
    present: list[frozenset[int]], share: float, seed: int
) -> None:
    part = draw_part(present, share, seed=seed)
    known = frozenset().union(*present)
    shown = frozenset().union(*(present[index] for index in part.indices))
    assert set(part.missing) == known - shown
    if len(part.indices) >= len(known):
        assert not part.missing
    assert bool(part.problems([f"class {number}" for number in range(7)])) == bool(part.missing)


@given(shown_classes, seeds)
def test_an_order_has_every_image_once(present: list[frozenset[int]], seed: int) -> None:
    assert sorted(covering_order(present, seed=seed)) == list(range(len(present)))


def test_seeds_draw_other_images_and_a_seed_the_same_ones() -> None:
    present = [frozenset({0})] * 50
    drawn = {draw_part(present, 0.2, seed=seed).indices for seed in range(8)}
    assert len(drawn) == 8
    assert draw_part(present, 0.2, seed=3) == draw_part(present, 0.2, seed=3)


def test_missing_classes_are_named() -> None:
    present = [frozenset({number}) for number in range(9)]
    (told,) = draw_part(present, 0.2, seed=0).problems([f"c{number}" for number in range(9)])
    assert "None of the 2 images" in told
    assert "and 2 more classes" in told


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    write_coco_scenes(root, "train", count=12, size=64)
    write_coco_scenes(root, "test", count=2, size=64)
    return root


def opened(task: str, root: Path) -> tuple[Task, TaskData]:
    config = tiny_finetuning(task, root)
    built = config.task.build()
    return built, built.read(replace(config.data, root=root))


@pytest.mark.parametrize("task", ["detect", "instances", "keypoints", "segment"])
def test_tasks_take_a_part_and_leave_the_images_to_be_judged_by(task: str, scenes: Path) -> None:
    built, data = opened(task, scenes)
    half = built.take_fraction(data, 0.5, seed=1)
    assert half.train_images == len(half.train.samples if task != "segment" else half.train)
    assert half.train_images == round(0.5 * data.train_images)
    assert half.test is data.test
    assert half.class_names == data.class_names


def test_detectors_learn_from_a_part_with_every_class(scenes: Path) -> None:
    built, data = opened("detect", scenes)
    known = {thing.category for sample in data.train.samples for thing in sample.annotations}
    for seed in range(5):
        part = built.take_fraction(data, len(known) / data.train_images, seed=seed)
        kept = {thing.category for sample in part.train.samples for thing in sample.annotations}
        assert kept == known
        assert not part.problems


def test_masks_tell_which_classes_an_image_shows(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(10):
        Image.new("RGB", (40, 40)).save(tmp_path / "images" / f"{number}.png")
        mask = np.zeros((40, 40), np.uint8)
        mask[:20] = 2 if number == 7 else 1
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    (tmp_path / "classes.txt").write_text("background\nwood\nknot\n")
    task = tiny_finetuning("segment", tmp_path).task.build()
    data = task.read(LabelledDataConfig(root=tmp_path, validation_share=0.1, split_seed=1))
    assert {2} in [shown - {0} for shown in data.train.present_classes()], "or choose another split"
    for seed in range(4):
        part = task.take_fraction(data, 2 / 9, seed=seed)
        shown = [
            set(part.train.load(index)[1].unique().tolist()) for index in range(len(part.train))
        ]
        assert set().union(*shown) == {0, 1, 2}
    assert "shows 'wood'" in task.take_fraction(data, 1 / 9, seed=0).problems[0]
