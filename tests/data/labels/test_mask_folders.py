"""Images with a class for every pixel: Cityscapes, mask folders and COCO's instances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clove_ssl.data.labels.mask_folders import (
    CITYSCAPES_CLASSES,
    CityscapesLabels,
    MaskFolderLabels,
    mask_classes,
)
from clove_ssl.data.labels.pixels import IGNORE
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.rle import encode_mask
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample
from clove_ssl.tasks.semantic.coco import InstanceLabels, paint


def write_image(path: Path, *, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 30, 40)).save(path)


def write_mask(path: Path, rows: list[list[int]], mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(rows, np.uint8)).convert(mode).save(path)


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    for split, names in (("train", ("x/1", "2")), ("val", ("3",))):
        for name in names:
            write_image(tmp_path / f"images/{split}/{name}.jpg")
            write_mask(tmp_path / f"masks/{split}/{name}.png", [[0, 1, 2, IGNORE, 0, 0]] * 4)
    return tmp_path


class TestCityscapes:
    def test_label_ids_become_the_scored_classes(self, tmp_path: Path) -> None:
        stem = "train/ulm/ulm_000001_000019"
        write_image(tmp_path / f"leftImg8bit/{stem}_leftImg8bit.png")
        ids = [[7, 8, 33, 0, 3, 29]] * 4
        write_mask(tmp_path / f"gtFine/{stem}_gtFine_labelIds.png", ids)
        labels = CityscapesLabels(tmp_path, "train")
        image, numbers = labels.load(0)
        assert len(labels) == 1
        assert image.shape == (3, 4, 6)
        assert numbers[0].tolist() == [0, 1, 18, IGNORE, IGNORE, IGNORE]

    def test_there_are_19_classes_with_eight_things_among_them(self) -> None:
        assert len(CITYSCAPES_CLASSES) == 19
        things = {"person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"}
        ids = {CITYSCAPES_CLASSES[name] for name in things}
        assert ids == {24, 25, 26, 27, 28, 31, 32, 33}

    def test_a_missing_split_names_the_known_ones(self, tmp_path: Path) -> None:
        (tmp_path / "leftImg8bit/train").mkdir(parents=True)
        with pytest.raises(UserError, match="Known: train"):
            CityscapesLabels(tmp_path, "val")

    def test_a_missing_label_map_is_named(self, tmp_path: Path) -> None:
        write_image(tmp_path / "leftImg8bit/val/ulm/a_leftImg8bit.png")
        with pytest.raises(UserError, match="a_gtFine_labelIds.png cannot be read"):
            CityscapesLabels(tmp_path, "val").load(0)


class TestMaskFolder:
    def test_masks_have_the_names_of_their_images(self, masks: Path) -> None:
        names = mask_classes(masks)
        labels = MaskFolderLabels(masks, "train", names)
        image, numbers = labels.load(1)
        assert names == labels.class_names == ("0", "1", "2")
        assert len(labels) == 2
        assert image.shape == (3, 4, 6)
        assert numbers[0].tolist() == [0, 1, 2, IGNORE, 0, 0]

    def test_without_splits_all_images_count(self, masks: Path) -> None:
        assert len(MaskFolderLabels(masks, "", mask_classes(masks))) == 3

    def test_classes_can_be_named(self, masks: Path) -> None:
        (masks / "classes.txt").write_text("street\nhouse\n\nsky\n")
        assert mask_classes(masks) == ("street", "house", "sky")

    def test_an_image_without_a_mask_is_named(self, masks: Path) -> None:
        (masks / "masks/train/2.png").unlink()
        with pytest.raises(UserError, match=r"1 of the 2 images .* have no mask.* first is 2.jpg"):
            MaskFolderLabels(masks, "train", ("a", "b", "c"))

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda path: write_mask(path, [[0, 1]] * 4), "equal heights and widths"),
            (lambda path: write_mask(path, [[0, 1, 2, 3, 0, 0]] * 4), "has the class 3"),
            (lambda path: write_mask(path, [[0, 1, 2, 1, 0, 0]] * 4, "RGB"), "RGB pixels"),
            (lambda path: path.write_bytes(b"no picture"), "cannot be read"),
        ],
    )
    def test_an_unfit_mask_is_named(self, masks: Path, spoil: object, message: str) -> None:
        spoil(masks / "masks/val/3.png")  # type: ignore[operator]
        with pytest.raises(UserError, match=message):
            MaskFolderLabels(masks, "val", ("a", "b", "c")).load(0)

    def test_masks_of_one_class_are_refused(self, tmp_path: Path) -> None:
        write_mask(tmp_path / "masks/1.png", [[0, 0, 255]])
        with pytest.raises(UserError, match="one class only"):
            mask_classes(tmp_path)


class TestInstances:
    def test_small_objects_lie_on_large_ones_and_crowds_are_unjudged(self) -> None:
        large, small, crowd = (np.zeros((4, 6), bool) for _ in range(3))
        large[:, :4], small[1:3, 1:3], crowd[:, 3:] = True, True, True
        annotations = tuple(
            Annotation((0, 0, 6, 4), category, float(mask.sum()), crowd=is_crowd,
                       mask=encode_mask(mask))
            for mask, category, is_crowd in ((small, 1, False), (crowd, 0, True), (large, 0, False))
        )  # fmt: skip
        labels = paint(Sample(Path("a.jpg"), 1, 6, 4, annotations))
        assert labels.tolist() == [
            [1, 1, 1, 1, IGNORE, IGNORE],
            [1, 2, 2, 1, IGNORE, IGNORE],
            [1, 2, 2, 1, IGNORE, IGNORE],
            [1, 1, 1, 1, IGNORE, IGNORE],
        ]

    def test_polygons_are_filled(self, tmp_path: Path) -> None:
        write_image(tmp_path / "a.png")
        square = ((1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0),)
        sample = Sample(
            tmp_path / "a.png", 1, 6, 4, (Annotation((1, 1, 4, 3), 0, 6.0, mask=square),)
        )
        labels = InstanceLabels(DetectionDataset((sample,), ("dog",), (18,)), tmp_path)
        image, numbers = labels.load(0)
        assert labels.class_names == ("background", "dog")
        assert image.shape == (3, 4, 6)
        assert numbers.sum() == 6
        assert numbers[1, 1:4].tolist() == [1, 1, 1]

    def test_a_set_without_masks_is_refused(self, tmp_path: Path) -> None:
        sample = Sample(tmp_path / "a.png", 1, 6, 4, (Annotation((1, 1, 4, 3), 0, 6.0),))
        with pytest.raises(UserError, match="No annotation of .* has a mask"):
            InstanceLabels(DetectionDataset((sample,), ("dog",), (1,)), tmp_path)
