"""Labelled images for probes: built-in scenes and VOC folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clove_ssl.data.labels.pixels import IGNORE, VOC_CLASSES, SceneLabels, VOCLabels
from clove_ssl.data.scenes import SCENE_CLASSES, SceneSource
from clove_ssl.errors import UserError


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """A VOC folder with two images, 5 x 4 pixels."""
    folder = tmp_path / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / name).mkdir(parents=True)
    (folder / "ImageSets/Segmentation/train.txt").write_text("2007_000032\n2007_000039\n")
    (folder / "ImageSets/Segmentation/val.txt").write_text("2007_000039\n")
    for name, label in (("2007_000032", 15), ("2007_000039", 20)):
        Image.new("RGB", (5, 4), (200, 30, 40)).save(folder / "JPEGImages" / f"{name}.jpg")
        write_mask(folder, name, np.array([[0, label, IGNORE, 0, 0]] * 4, np.uint8))
    return tmp_path


def write_mask(folder: Path, name: str, labels: np.ndarray) -> None:
    mask = Image.fromarray(labels)
    mask.putpalette([value % 256 for value in range(0, 768 * 7, 7)])
    mask.save(folder / "SegmentationClass" / f"{name}.png")


def test_scenes_come_with_their_own_labels() -> None:
    labels = SceneLabels(3, 64, "test")
    scene = SceneSource(3, 64, "test").scene(1)
    image, semantic = labels.load(1)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 64, 64))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), scene.image)
    assert np.array_equal(semantic.numpy(), scene.semantic)
    assert len(labels) == 3
    assert labels.class_names == ("background", *SCENE_CLASSES)


def test_splits_of_scenes_differ() -> None:
    train, test = SceneLabels(1, 64, "train").load(0), SceneLabels(1, 64, "test").load(0)
    assert not torch.equal(train[0], test[0])


@pytest.mark.parametrize("inner", ["", "VOC2012"])
def test_voc_is_found_from_above_or_inside(voc: Path, inner: str) -> None:
    labels = VOCLabels(voc / inner, "train")
    image, semantic = labels.load(0)
    assert len(labels) == 2
    assert image.shape == (3, 4, 5)
    assert (image.float().mean((1, 2)) - torch.tensor([200.0, 30, 40])).abs().max() < 4
    assert semantic.dtype == torch.uint8
    assert semantic[0].tolist() == [0, 15, IGNORE, 0, 0]
    assert VOCLabels(voc, "val").load(0)[1][0, 1] == VOC_CLASSES.index("tvmonitor")


def test_voc_has_its_21_classes() -> None:
    assert len(VOC_CLASSES) == len(set(VOC_CLASSES)) == 21
    assert VOC_CLASSES[15] == "person"


def test_a_folder_that_is_not_voc_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no VOC folder.*SegmentationClass"):
        VOCLabels(tmp_path)


def test_an_unknown_split_names_the_known_ones(voc: Path) -> None:
    with pytest.raises(UserError, match=r"'trian'. Did you mean 'train'\? Known: train, val"):
        VOCLabels(voc, "trian")


def test_an_empty_list_is_refused(voc: Path) -> None:
    (voc / "VOC2012/ImageSets/Segmentation/val.txt").write_text("\n")
    with pytest.raises(UserError, match="lists no image"):
        VOCLabels(voc, "val")


def lose_mask(folder: Path) -> None:
    (folder / "SegmentationClass/2007_000032.png").unlink()


def lose_image(folder: Path) -> None:
    (folder / "JPEGImages/2007_000032.jpg").unlink()


def cut_image(folder: Path) -> None:
    path = folder / "JPEGImages/2007_000032.jpg"
    path.write_bytes(path.read_bytes()[:200])


def garble_mask(folder: Path) -> None:
    (folder / "SegmentationClass/2007_000032.png").write_bytes(b"no picture")


def shrink_mask(folder: Path) -> None:
    write_mask(folder, "2007_000032", np.zeros((4, 3), np.uint8))


def exceed_classes(folder: Path) -> None:
    write_mask(folder, "2007_000032", np.full((4, 5), 21, np.uint8))


def colour_mask(folder: Path) -> None:
    Image.new("RGB", (5, 4)).save(folder / "SegmentationClass/2007_000032.png")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_mask, r"2007_000032\.png is in the list.*cannot be read"),
        (lose_image, r"2007_000032\.jpg is in the list.*cannot be read"),
        (cut_image, r"2007_000032\.jpg is a"),
        (garble_mask, "no readable PNG"),
        (shrink_mask, "has 3 x 4 pixels, but its image 5 x 4"),
        (exceed_classes, "P pixels up to 21.*classes 0 to 20"),
        (colour_mask, "RGB pixels.*expected a palette image"),
    ],
)
def test_damage_names_the_file(voc: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(voc / "VOC2012")
    with pytest.raises(UserError, match=message):
        VOCLabels(voc, "train").load(0)


def test_the_real_data_fit(data_folder: Path) -> None:
    labels = VOCLabels(data_folder / "voc2012", "test")
    assert len(labels) > 100
    for index in (0, len(labels) // 2, len(labels) - 1):
        image, semantic = labels.load(index)
        assert image.shape[1:] == semantic.shape
        assert (semantic != 0).any()
