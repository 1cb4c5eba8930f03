"""Reading VOC's layout: the boxes, the flags and every fault a file may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.voc import VOC_CLASSES, read_voc
from clove_ssl.tasks.detection.voc_scores import VOCTruth
from clove_ssl.tasks.labels.samples import Annotation

OBJECT = """
<object><name>{name}</name>{difficult}
  <part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
  <bndbox><xmax>{xmax}</xmax><xmin>{xmin}</xmin><ymax>{ymax}</ymax><ymin>{ymin}</ymin></bndbox>
</object>"""
BOX = {"xmin": "3", "ymin": "1", "xmax": "40", "ymax": "30"}


def one_object(name: str = "dog", difficult: str = "", **corners: str) -> str:
    return OBJECT.format(name=name, difficult=difficult, **(BOX | corners))


def add_image(root: Path, name: str, objects: str, *, year: int = 2007, split: str = "val") -> Path:
    """Add an image of 40 x 30 pixels to a list; the path of its annotation."""
    folder = root / f"VOC{year}"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "JPEGImages" / f"{name}.jpg").write_bytes(b"never opened")
    with (folder / "ImageSets" / "Main" / f"{split}.txt").open("a") as file:
        file.write(f"{name}\n")
    path = folder / "Annotations" / f"{name}.xml"
    size = "<size><width>40</width><height>30</height><depth>3</depth></size>"
    path.write_text(f"<annotation>{size}{objects}</annotation>")
    return path


def test_boxes_lose_the_pixel_that_voc_counts_from(tmp_path: Path) -> None:
    add_image(tmp_path, "000001", one_object(xmax="39.5"))
    (sample,) = read_voc(tmp_path, [(2007, "val")]).samples
    assert sample.annotations == (
        Annotation((2.0, 0.0, 39.5, 30.0), VOC_CLASSES.index("dog"), 37.5 * 30.0),
    )
    assert (sample.width, sample.height, sample.identifier) == (40, 30, "000001")
    assert sample.image == tmp_path / "VOC2007" / "JPEGImages" / "000001.jpg"


def test_difficult_objects_are_kept_and_marked(tmp_path: Path) -> None:
    flags = ["", "<difficult>0</difficult>", "<difficult>1</difficult>"]
    add_image(tmp_path, "a", "".join(one_object(difficult=flag) for flag in flags))
    add_image(tmp_path, "b", "")
    first, second = read_voc(tmp_path, [(2007, "val")]).samples
    assert [thing.difficult for thing in first.annotations] == [False, False, True]
    assert second.annotations == ()


def test_lists_of_several_years_follow_each_other(tmp_path: Path) -> None:
    add_image(tmp_path / "VOCdevkit", "old", one_object(), year=2007, split="trainval")
    add_image(tmp_path / "VOCdevkit", "new", one_object("cat"), year=2012, split="train")
    dataset = read_voc(tmp_path, [(2012, "train"), (2007, "trainval")])
    assert [sample.identifier for sample in dataset.samples] == ["new", "old"]
    truth = VOCTruth.of(dataset.samples)
    assert truth.image.tolist() == [0, 1]
    assert truth.category.tolist() == [VOC_CLASSES.index("cat"), VOC_CLASSES.index("dog")]
    assert truth.box.tolist() == [[2.0, 0.0, 40.0, 30.0]] * 2


def test_the_folder_of_a_year_may_be_given_itself(tmp_path: Path) -> None:
    add_image(tmp_path, "a", one_object())
    assert len(read_voc(tmp_path / "VOC2007", [(2007, "val")]).samples) == 1


def test_other_classes_can_be_read(tmp_path: Path) -> None:
    add_image(tmp_path, "a", one_object("gear"))
    dataset = read_voc(tmp_path, [(2007, "val")], class_names=("bolt", "gear"))
    assert dataset.samples[0].annotations[0].category == 1
    assert dataset.class_of(1) == 1


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (one_object("dgo"), "a.xml 'dgo'. Did you mean 'dog'"),
        (one_object(xmin="three"), "a.xml has bndbox/xmin 'three'"),
        (one_object(xmax="2"), "xmin, ymin, xmax, ymax = 3, 1, 2, 30"),
        (one_object(ymax="35"), "40 x 30 pixels"),
        (one_object(xmin="nan"), "a.xml has a dog"),
        ("<object><name>dog</name></object>", "a.xml has bndbox/xmin None"),
        ("<object>", "a.xml is no XML"),
    ],
)
def test_faulty_annotations_are_refused_with_their_file(
    tmp_path: Path, objects: str, message: str
) -> None:
    add_image(tmp_path, "a", objects)
    with pytest.raises(UserError, match=message.replace(".", r"\.")):
        read_voc(tmp_path, [(2007, "val")])


def test_faulty_boxes_are_left_out_and_listed_when_asked_for(tmp_path: Path) -> None:
    add_image(tmp_path, "a", one_object(ymax="35") + one_object())
    dataset = read_voc(tmp_path, [(2007, "val")], faulty="leave out")
    assert len(dataset.samples[0].annotations) == 1
    (said,) = dataset.left_out
    assert "a.xml has a dog" in said
    with pytest.raises(UserError, match="--data.faulty leave-out"):
        read_voc(tmp_path, [(2007, "val")])


def test_missing_files_are_named(tmp_path: Path) -> None:
    annotation = add_image(tmp_path, "a", one_object())
    annotation.unlink()
    with pytest.raises(UserError, match=r"a\.xml cannot be read"):
        read_voc(tmp_path, [(2007, "val")])
    (tmp_path / "VOC2007" / "JPEGImages" / "a.jpg").unlink()
    with pytest.raises(UserError, match=r"a\.jpg is in the list"):
        read_voc(tmp_path, [(2007, "val")])


def test_what_lies_in_the_place_of_labels_is_not_waited_for_or_read_whole(tmp_path: Path) -> None:
    pipe = add_image(tmp_path / "pipe", "a", one_object())
    pipe.unlink()
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"a\.xml cannot be read: it is not a regular file"):
        read_voc(tmp_path / "pipe", [(2007, "val")])
    large = add_image(tmp_path / "large", "a", one_object())
    os.truncate(large, 2**40)
    with pytest.raises(UserError, match=r"a\.xml has more than 2,097,152 bytes"):
        read_voc(tmp_path / "large", [(2007, "val")])


def test_lists_that_do_not_exist_share_images_or_are_empty_are_refused(tmp_path: Path) -> None:
    add_image(tmp_path, "a", one_object())
    with pytest.raises(UserError, match="Did you mean 'val'"):
        read_voc(tmp_path, [(2007, "vall")])
    with pytest.raises(UserError, match="holds no VOC2012"):
        read_voc(tmp_path, [(2012, "val")])
    with pytest.raises(UserError, match="listed twice"):
        read_voc(tmp_path, [(2007, "val"), (2007, "val")])
    with pytest.raises(UserError, match="No split"):
        read_voc(tmp_path, [])
    (tmp_path / "VOC2007" / "ImageSets" / "Main" / "val.txt").write_text("\n")
    with pytest.raises(UserError, match="lists no image"):
        read_voc(tmp_path, [(2007, "val")])


@pytest.mark.parametrize(
    ("split", "images", "objects", "difficult"),
    [("train", 1100, 2688, 354), ("test", 450, 1023, 96)],
)
def test_real_lists_have_the_counts_of_their_description(
    data_folder: Path, split: str, images: int, objects: int, difficult: int
) -> None:
    dataset = read_voc(data_folder / "voc2012", [(2012, split)])
    truth = VOCTruth.of(dataset.samples)
    assert (len(dataset.samples), len(truth.image)) == (images, objects)
    assert truth.difficult.sum() == difficult
    assert set(truth.category.tolist()) == set(range(20))
