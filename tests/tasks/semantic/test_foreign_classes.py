"""Masks in VOC's layout that are not of VOC's classes are not called by VOC's names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.data.labels.pixels import VOC_CLASSES
from clove_ssl.errors import UserError
from clove_ssl.tasks.own.config import SegmentConfig
from clove_ssl.tasks.semantic.config import VOCSemanticConfig

POINTER = "For classes of your own type: clove finetune segment"


@pytest.fixture
def own_masks(tmp_path: Path) -> Path:
    """Two images with masks of one class beside the background."""
    base = tmp_path / "VOC2012"
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation", "Annotations"):
        (base / part).mkdir(parents=True)
    mask = np.zeros((32, 40), np.uint8)
    mask[3:20, 4:30] = 1
    for number, split in enumerate(("train", "val")):
        noise = np.random.default_rng(number).integers(0, 256, (32, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(base / f"JPEGImages/{split}_1.jpg")
        Image.fromarray(mask).save(base / f"SegmentationClass/{split}_1.png")
        (base / f"ImageSets/Segmentation/{split}.txt").write_text(f"{split}_1\n")
    return tmp_path


def read(root: Path) -> tuple[str, ...]:
    return VOCSemanticConfig().build().read(LabelledDataConfig(root=root)).class_names


def test_masks_that_nobody_names_are_refused_unless_all_classes_occur(own_masks: Path) -> None:
    with pytest.raises(UserError, match=rf"only 2 of VOC's 21 \(background, aeroplane.*{POINTER}"):
        read(own_masks)
    whole = np.arange(32 * 40, dtype=np.uint16).reshape(32, 40) % len(VOC_CLASSES)
    path = own_masks / "VOC2012/SegmentationClass/train_1.png"
    Image.fromarray(whole.astype(np.uint8)).save(path)
    assert read(own_masks) == VOC_CLASSES


def test_names_of_other_classes_are_refused_and_those_of_voc_are_not(own_masks: Path) -> None:
    boxes = own_masks / "VOC2012/Annotations/train_1.xml"
    boxes.write_text("<annotation><object><name>worker</name></object></annotation>")
    with pytest.raises(UserError, match=f"its classes are 'worker'.*{POINTER}"):
        read(own_masks)
    boxes.write_text("<annotation><object><name>person</name></object></annotation>")
    assert read(own_masks) == VOC_CLASSES


def test_segment_takes_them_by_their_names(own_masks: Path) -> None:
    task = SegmentConfig().build()
    with pytest.raises(UserError, match=r"Write the names of the classes.*classes\.txt"):
        task.read(LabelledDataConfig(root=own_masks))
    (own_masks / "classes.txt").write_text("background\nworker\n")
    data = task.read(LabelledDataConfig(root=own_masks))
    assert data.class_names == ("background", "worker")
    assert (data.train_images, data.test_images) == (1, 1)
    with pytest.raises(UserError, match="its classes are 'worker'"):
        read(own_masks)
