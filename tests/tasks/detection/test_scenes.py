"""Built-in scenes written as VOC and COCO files read back as they were drawn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clove_ssl.data.labels.pixels import VOCLabels
from clove_ssl.data.scenes import KEYPOINT_NAMES, SCENE_CLASSES, Scene, SceneSource
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco_scores import score_coco
from clove_ssl.tasks.detection.scenes import (
    read_coco_scenes,
    read_voc_scenes,
    voc_palette,
    write_coco_scenes,
    write_voc_scenes,
)
from clove_ssl.tasks.labels.rle import RLE, decode_mask

COUNT, SIZE = 5, 96
PERSON = SCENE_CLASSES.index("person")


def drawn(split: str = "train") -> list[Scene]:
    source = SceneSource(COUNT, SIZE, split)
    return [source.scene(index) for index in range(COUNT)]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("split", ["train", "test"])
def test_voc_files_read_back_as_drawn(tmp_path: Path, split: str) -> None:
    write_voc_scenes(tmp_path, split, count=COUNT, size=SIZE)
    dataset = read_voc_scenes(tmp_path, split)
    assert dataset.class_names == SCENE_CLASSES
    for sample, scene in zip(dataset.samples, drawn(split), strict=True):
        found = [(thing.box, thing.category, thing.difficult) for thing in sample.annotations]
        assert found == [(thing.box, thing.category - 1, False) for thing in scene.objects]
        pixels = np.asarray(Image.open(sample.image)).astype(int)
        assert np.abs(pixels - scene.image).mean() < 4  # of 255; JPEG


def test_class_maps_read_back_as_drawn(tmp_path: Path) -> None:
    write_voc_scenes(tmp_path, count=COUNT, size=SIZE)
    labels = VOCLabels(tmp_path, "train")
    assert len(labels) == COUNT
    for index, scene in enumerate(drawn()):
        np.testing.assert_array_equal(labels.load(index)[1].numpy(), scene.semantic)


def test_the_palette_has_the_colours_of_voc(data_folder: Path) -> None:
    (path, *_) = sorted((data_folder / "voc2012/VOC2012/SegmentationClass").glob("*.png"))
    palette = np.array(Image.open(path).getpalette()).reshape(-1, 3)
    np.testing.assert_array_equal(voc_palette()[: len(palette)], palette)


@pytest.mark.parametrize("split", ["train", "test"])
def test_coco_files_read_back_as_drawn(tmp_path: Path, split: str) -> None:
    write_coco_scenes(tmp_path, split, count=COUNT, size=SIZE)
    dataset = read_coco_scenes(tmp_path, split)
    assert dataset.class_names == SCENE_CLASSES
    for sample, scene in zip(dataset.samples, drawn(split), strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(sample.image)), scene.image)
        for found, thing in zip(sample.annotations, scene.objects, strict=True):
            assert (found.box, found.category) == (thing.box, thing.category - 1)
            assert found.area == thing.mask.sum()
            assert isinstance(found.mask, RLE)
            np.testing.assert_array_equal(decode_mask(found.mask), thing.mask)
            assert (found.keypoints is None) == (thing.keypoints is None)
            if thing.keypoints is not None:
                x, y, v = np.asarray(found.keypoints).T
                # The file names pixels; the scene knows places.
                middles = np.stack([x + 0.5 * (v > 0), y + 0.5 * (v > 0), v], axis=1)
                np.testing.assert_allclose(middles, thing.keypoints, atol=1e-4)


def test_the_file_of_persons_holds_all_persons_and_nothing_else(tmp_path: Path) -> None:
    write_coco_scenes(tmp_path, count=COUNT, size=SIZE)
    dataset = read_coco_scenes(tmp_path, task="person_keypoints")
    assert dataset.class_names == ("person",)
    assert dataset.category_ids == (PERSON + 1,)
    assert dataset.keypoint_names == tuple(KEYPOINT_NAMES)
    for sample, scene in zip(dataset.samples, drawn(), strict=True):
        boxes = [thing.box for thing in scene.objects if thing.category == PERSON + 1]
        assert [thing.box for thing in sample.annotations] == boxes
    assert sum(len(sample.annotations) for sample in dataset.samples) > 0


def test_files_can_be_scored(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval")
    write_coco_scenes(tmp_path, count=COUNT, size=SIZE)
    for task, kinds in (("instances", ("box", "mask")), ("person_keypoints", ("keypoints",))):
        truth = json.loads((tmp_path / "annotations" / f"{task}_train.json").read_text())
        perfect = [entry | {"score": 1.0} for entry in truth["annotations"]]
        for kind in kinds:
            assert score_coco(truth, perfect, kind=kind).summary()["AP"] == pytest.approx(1.0)


def test_writing_again_gives_the_same_files(tmp_path: Path) -> None:
    for folder in (tmp_path / "a", tmp_path / "b"):
        write_voc_scenes(folder, count=2, size=SIZE)
        write_coco_scenes(folder, count=2, size=SIZE)
    first = digests(tmp_path / "a")
    assert first == digests(tmp_path / "b")
    assert len(first) == 12
    write_voc_scenes(tmp_path / "a", count=2, size=SIZE)
    write_coco_scenes(tmp_path / "a", count=2, size=SIZE)
    assert digests(tmp_path / "a") == first


def test_the_splits_share_a_folder_but_no_scene(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_coco_scenes(tmp_path, split, count=2, size=SIZE)
    train, test = (read_coco_scenes(tmp_path, split) for split in ("train", "test"))
    for mine, theirs in zip(train.samples, test.samples, strict=True):
        assert mine.image.read_bytes() != theirs.image.read_bytes()


@pytest.mark.parametrize("write", [write_voc_scenes, write_coco_scenes])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, write: object) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Scenes cannot be written to .*file"):
        write(tmp_path / "file", count=1, size=SIZE)
