"""What is wrong with data of one's own is said in one message, before anything is trained."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders.files.denied_folders import deny_listing
from builders.labels.small_datasets import random_dataset
from builders.labels.written_formats import WRITERS
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from clove_ssl import cli
from clove_ssl.config.finetuning import LabelledDataConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.own.config import DetectConfig, InstancesConfig, SegmentConfig
from clove_ssl.tasks.own.finding import open_own
from clove_ssl.tasks.own.pixel_labels import pixel_labels


@pytest.fixture
def pack(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a small data set in a format: images 0 to 4 to learn from, 5 and 6 to judge by."""
    whole = random_dataset(tmp_path / "photos")
    splits = {
        "train": replace(whole, samples=whole.samples[:5]),
        "val": replace(whole, samples=whole.samples[5:]),
    }
    return lambda name: WRITERS[name](splits, tmp_path / name)


def told(root: Path) -> str:
    """The problems of a data set that is read all the same."""
    return "\n".join(open_own(LabelledDataConfig(root=root)).problems)


def refused(root: Path) -> str:
    with pytest.raises(UserError) as error:
        open_own(LabelledDataConfig(root=root))
    return str(error.value)


def change_json(path: Path, change: Callable[[dict[str, list[dict[str, object]]]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_several_formats_are_refused(pack: Callable[[str], Path]) -> None:
    shutil.copytree(pack("coco") / "annotations", pack("yolo") / "annotations")
    told = refused(pack("yolo"))
    assert "several formats: COCO, YOLO" in told
    assert f"such as --data {pack('yolo') / 'data.yaml'}." in told


def test_advice_names_nothing_that_is_not_there(pack: Callable[[str], Path]) -> None:
    above = pack("coco").parent
    pack("voc")
    assert refused(above).endswith("give the file or the folder of the one you mean.")
    (above / "labels.zip").write_bytes(b"PK")
    assert "Unpack it" in refused(above / "labels.zip")


def test_no_labels_are_refused(tmp_path: Path, pack: Callable[[str], Path]) -> None:
    pack("voc")
    assert "holds no labels of a known format. Expected one of: COCO" in refused(
        tmp_path / "photos"
    )
    assert "does not exist" in refused(tmp_path / "nowhere")


def test_data_without_a_single_object_are_refused(pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    for path in (root / "labels").rglob("*.txt"):
        path.write_text("")
    assert "(YOLO) has 7 images, but nobody has labelled an object" in refused(root)


def test_nobody_searches_the_whole_disk(pack: Callable[[str], Path]) -> None:
    """A slip in a file would take minutes, and find the photos of others."""
    description = pack("yolo") / "data.yaml"
    description.write_text("path: /\ntrain: .\nval: images/val\nnames: [cat]\n")
    message = refused(description)
    assert f"{description} names /" in message
    assert "Expected the folder of the data alone; correct the file." in message
    assert "give that one with --data" in refused(Path("/"))
    assert "give that one with --data" in refused(Path.home().resolve().parents[0])


def test_a_class_that_training_lacks_and_an_empty_one_are_named(
    pack: Callable[[str], Path],
) -> None:
    root = pack("yolo")
    text = (root / "data.yaml").read_text()
    (root / "data.yaml").write_text(text + "  2: whale\n  3: unicorn\n")
    label = root / "labels/val/5.txt"
    label.write_text(label.read_text() + "2 0.5 0.5 0.2 0.2\n")
    assert "The val images have objects of 'whale'" in told(root)
    assert "no object of 'unicorn'" in told(root)


@pytest.mark.parametrize("typed", ["yolo", "link"])
def test_labels_have_images_however_their_folder_is_named(
    typed: str,
    pack: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = pack("yolo")
    description = root / "data.yaml"
    description.write_text(f"path: {root}\n{description.read_text()}")
    (root.parent / "link").symlink_to(root)
    monkeypatch.chdir(root.parent)  # the folder is typed as a relative one, and is absolute inside
    assert told(Path(typed)) == ""
    (root / "labels/train/alone.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    assert "1 label file has no image" in told(Path(typed))


def test_images_without_labels_and_labels_without_images_are_named(
    pack: Callable[[str], Path],
) -> None:
    for name, labels, image in (
        ("yolo", "labels/train/0.txt", "images/train/1.png"),
        ("voc", "Annotations/0.xml", "JPEGImages/1.png"),
    ):
        root = pack(name)
        (root / labels).unlink()
        (root / image).unlink()
        assert "1 image has no label file" in told(root)
        assert "1 label file has no image" in told(root)
    root = pack("coco")
    (root / "train/1.png").unlink()
    shutil.copy(root / "train/0.png", root / "train/new.png")
    assert "1 image is listed but not there" in told(root)
    assert "1 image is in no annotation file and was left out" in told(root)


@pytest.mark.parametrize("suffix", [".xml", ".json"])
def test_a_second_file_of_labels_for_an_image_is_left_out(
    suffix: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    """Or the image would be there twice under one name, and scores would mix them up."""
    root = pack("voc") if suffix == ".xml" else labelme_folder(tmp_path / "labelme")
    labels = next(path for path in sorted(root.rglob(f"*{suffix}")))
    before = open_own(LabelledDataConfig(root=root)).items
    shutil.copy(labels, labels.with_name(f"!copy{suffix}"))  # sorted before the others
    if suffix == ".xml":
        names = root / "ImageSets/Main/train.txt"
        names.write_text(f"!copy\n{names.read_text()}")
    data = open_own(LabelledDataConfig(root=root))
    assert data.items == before
    said = "1 label file is of an image that another one belongs to and was left out"
    assert f"{said}: {labels.with_name('!copy')}" in "\n".join(data.problems)


def labelme_folder(root: Path) -> Path:
    """Three images with a triangle in each."""
    root.mkdir()
    shape = {"label": "cup", "points": [[2, 2], [20, 2], [20, 20]], "shape_type": "polygon"}
    for name in ("a", "b", "c"):
        pixels = np.full((30, 40, 3), ord(name), np.uint8)
        Image.fromarray(pixels).save(root / f"{name}.png")
        content = {"imagePath": f"{name}.png", "shapes": [shape]}
        (root / f"{name}.json").write_text(json.dumps(content))
    return root


def test_labels_of_an_image_of_another_size_are_refused(tmp_path: Path) -> None:
    root = labelme_folder(tmp_path / "me")
    for name in ("a", "b", "c"):
        change_json(root / f"{name}.json", lambda c: c.update(imageHeight=30, imageWidth=40))
    assert len(opened_boxes(root)) == 3
    change_json(root / "b.json", lambda c: c.update(imageHeight=60, imageWidth=80))
    assert "b.png has 40 x 30 pixels, but its annotation says 80 x 60" in refused(root)


@pytest.mark.parametrize("stated", [(40, 30), (30, 40)])
def test_boxes_of_a_photo_as_it_is_stored_do_not_fit_it_as_it_is_shown(
    stated: tuple[int, int], tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored 40 x 30, shown 30 x 40
    width, height = stated
    for number in range(2):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / f"{number}.jpg", exif=exif)
        box = "<xmin>2</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax>"
        (tmp_path / f"{number}.xml").write_text(
            f"<annotation><size><width>{width}</width><height>{height}</height></size>"
            f"<object><name>cup</name><bndbox>{box}</bndbox></object></annotation>"
        )
    if stated == (30, 40):
        assert len(opened_boxes(tmp_path)) == 2
    else:
        assert "says 40 x 30, so no box would fit. If it has an EXIF note" in refused(tmp_path)


def test_objects_without_a_mask_are_counted_where_masks_are_learned(tmp_path: Path) -> None:
    root = labelme_folder(tmp_path / "me")
    box = {"label": "cup", "points": [[5, 5], [20, 20]], "shape_type": "rectangle"}
    for name in ("a", "b", "c"):
        change_json(root / f"{name}.json", lambda c: c["shapes"].append(dict(box)))
    change_json(root / "c.json", lambda c: c["shapes"].pop())
    config = LabelledDataConfig(root=root)
    data = open_own(config)
    counts = {
        split: sum(not thing.mask for thing in data.annotations(split)) for split in data.items
    }
    problems = "\n".join(InstancesConfig().build().read(config).problems)
    assert f"{counts['train']} of {counts['train'] + 2} train objects have no mask" in problems
    assert ("val objects" in problems) == (counts["val"] > 0)
    assert not DetectConfig().build().read(config).problems
    whole = labelme_folder(tmp_path / "whole")
    assert not InstancesConfig().build().read(LabelledDataConfig(root=whole)).problems
    change_json(whole / "a.json", lambda c: c["shapes"].append(dict(box)))
    problems = "\n".join(SegmentConfig().build().read(LabelledDataConfig(root=whole)).problems)
    assert "images are left out: an object has no outline" in problems


def test_boxes_and_background_are_no_labels_of_pixels(pack: Callable[[str], Path]) -> None:
    """A network would learn that everything is background."""
    root = pack("yolo")
    for number, path in enumerate(sorted((root / "labels").rglob("*.txt"))):
        path.write_text("0 0.5 0.5 0.2 0.2\n" if number % 2 else "")
    with pytest.raises(UserError, match="None of the 5 train images .* has a mask or the outline"):
        pixel_labels(open_own(LabelledDataConfig(root=root)), "train")


def test_the_first_image_without_a_mask_is_that_of_the_alphabet(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(30):
        Image.new("RGB", (8, 8)).save(tmp_path / f"images/{number:02d}.png")
    Image.new("L", (8, 8), 1).save(tmp_path / "masks/29.png")
    Image.new("L", (8, 8), 1).save(tmp_path / "masks/28.png")
    (tmp_path / "classes.txt").write_text("background\ncup\n")
    assert "28 images have no mask and were left out; the first: " in told(tmp_path)
    assert f"the first: {tmp_path / 'images/00.png'}" in told(tmp_path)


def test_a_folder_without_the_images_is_named(pack: Callable[[str], Path], tmp_path: Path) -> None:
    root = pack("coco")
    shutil.rmtree(root / "train")
    assert "None of the images of" in refused(root)
    file = root / "annotations/train.json"
    with pytest.raises(UserError, match="None of the images of .* below .*nowhere"):
        open_own(LabelledDataConfig(train_annotations=file, train_images=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "start",
    [
        "/home/jo/cups/images/",
        "C:\\Users\\jo\\cups\\",
        "images\\",
        "https://host.org/a%20b/images/",
        "/data/local-files/?d=cups/",
        "../../media/upload/1/",
    ],
)
def test_names_of_another_machine_are_known_by_their_ends(
    start: str, pack: Callable[[str], Path], tmp_path: Path
) -> None:
    labels = pack("coco") / "annotations/train.json"
    shutil.copytree(labels.parent.parent / "train", tmp_path / "cups/images")
    shutil.copy(labels, tmp_path / "cups/labels.json")
    expected = opened_boxes(tmp_path / "cups")
    file = tmp_path / "cups/labels.json"
    change_json(
        file, lambda c: [e.update(file_name=start + str(e["file_name"])) for e in c["images"]]
    )
    assert opened_boxes(tmp_path / "cups") == expected
    (note,) = (n for n in open_own(LabelledDataConfig(root=file)).notes if "lead nowhere" in n)
    assert start in note


def opened_boxes(root: Path) -> dict[str, object]:
    items = open_own(LabelledDataConfig(root=root)).items
    samples = [item.sample for each in items.values() for item in each]
    return {sample.image.name: sample.annotations for sample in samples}


def test_names_do_not_lead_to_other_images(pack: Callable[[str], Path]) -> None:
    root = pack("coco")
    file = root / "annotations/train.json"
    (root / "images").mkdir()
    (root / "train").rename(root / "images/val2")  # 00.png, but whose?
    assert "None of the images of" in refused(file)
    (root / "images/val2").rename(root / "images/val")
    change_json(
        file, lambda c: [e.update(file_name=f"/a/train/{e['file_name']}") for e in c["images"]]
    )
    assert "None of the images of" in refused(file)
    (root / "images/val").rename(root / "images/mine")
    assert len(opened_boxes(file)) == 5
    shutil.copytree(root / "images/mine", root / "images/copy")
    assert "None of the images of" in refused(file)


def test_a_wrong_line_is_named_with_its_file_as_it_is_written(
    pack: Callable[[str], Path], tmp_path: Path
) -> None:
    root = shutil.copytree(pack("yolo"), tmp_path / "My Labels")
    for line, words in (("0 0.5", "has 2 numbers"), ("0 a", "no number"), ("0 50 1 1 1", "50")):
        (root / "labels/train/0.txt").write_text(f"{line}\n")
        assert f"Line 1 of {root / 'labels/train/0.txt'} has" in refused(root)
        assert words in refused(root)


def test_the_same_images_to_learn_and_to_judge_are_refused(pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    file = root / "data.yaml"
    file.write_text("names: [a, b, c]\ntrain: images/train\nval: images/train\n")
    assert "are those of `val` or `test`, too" in refused(root)
    file.write_text("names: {0: a, 5: b}\n")
    assert "numbers its classes 0, 5; expected" in refused(root)
    file.write_text("{")
    assert "Write lines like `names: [cup, hat]`" in refused(root)


def test_a_coco_file_without_images_or_in_another_encoding_is_told(
    pack: Callable[[str], Path],
) -> None:
    file = pack("coco") / "annotations/train.json"
    change_json(file, lambda content: content.update(images=[]))
    assert "lists no images" in refused(file.parent.parent)
    file.write_bytes(file.read_bytes().replace(b'"images"', b'"im\xe4ges"'))
    assert "Save it as UTF-8" in refused(file)


def test_an_image_in_both_splits_is_named(pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    shutil.copy(root / "images/train/2.png", root / "images/val/copy.png")
    shutil.copy(root / "labels/train/2.txt", root / "labels/val/copy.txt")
    assert "1 image is in two splits" in told(root)
    assert "2.png (train) = copy.png (val)" in told(root)


def test_boxes_that_leave_their_image_are_cut_or_left_out(pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    (root / "labels/train/0.txt").write_text("0 0.9 0.5 0.6 0.4\n1 2.5 0.5 0.2 0.2\n")
    problems = told(root)
    assert "1 box reaches over the border of its image and was cut there" in problems
    assert "1 box lies outside its image" in problems
    data = open_own(LabelledDataConfig(root=root))
    sample = data.items["train"][0].sample
    assert [thing.box[2] for thing in sample.annotations] == [sample.width]
    root = pack("coco")
    file = root / "annotations/train.json"
    change_json(file, lambda c: c["annotations"][0].update(bbox=[-9, 2, 30, 9]))
    change_json(file, lambda c: c["annotations"][1].update(bbox=[900, 2, 3, 9]))
    assert "1 box reaches over" in told(root)
    assert "1 box lies outside" in told(root)


def test_classes_that_count_from_1_are_told_from_those_that_count_from_0(
    pack: Callable[[str], Path],
) -> None:
    root = pack("yolo")
    for path in (root / "labels").rglob("*.txt"):
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        path.write_text("".join(f"{int(first) + 1} {rest}\n" for first, rest in lines))
    assert "They seem to count from 1" in refused(root)
    root = pack("coco")
    for file in (root / "annotations").glob("*.json"):
        change_json(
            file, lambda c: [e.update(category_id=e["category_id"] - 1) for e in c["annotations"]]
        )
    assert "count classes from 0 (ids 0 to 1), but its categories have the ids 1 to 2" in refused(
        root
    )


def test_pixels_instead_of_shares_are_refused(pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    (root / "labels/train/0.txt").write_text("0 30 40 22 18\n")
    assert "shares of the image's width and height, from 0 to 1, not pixels" in refused(root)
    (root / "labels/train/0.txt").write_text("0 0.5 0.5 0.2 0.2 0.9\n")
    assert "Line 1 of" in refused(root)
    assert "has 6 numbers; expected 5" in refused(root)


@pytest.mark.parametrize("name", ["~", '""', '" "', '"cup\\nhat"', '"\\e[31m"'])
def test_a_class_without_a_readable_name_is_refused(name: str, pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    path = root / "data.yaml"
    names = f"names: [{name}, hat]"
    path.write_text(re.sub("^names:.*(\n[ -].*)*", lambda _: names, path.read_text(), flags=re.M))
    assert names in path.read_text()
    assert "names a class '" in refused(root)


def test_classes_are_known_by_name_where_files_number_them_otherwise(
    pack: Callable[[str], Path],
) -> None:
    root = pack("coco")
    before = open_own(LabelledDataConfig(root=root))

    def swap(content: dict[str, list[dict[str, object]]]) -> None:
        for entry in content["categories"]:
            entry["id"] = 3 - int(str(entry["id"]))
        for entry in content["annotations"]:
            entry["category_id"] = 3 - int(str(entry["category_id"]))

    change_json(root / "annotations/val.json", swap)
    after = open_own(LabelledDataConfig(root=root))
    assert after.class_names == before.class_names
    for mine, theirs in zip(after.annotations("val"), before.annotations("val"), strict=True):
        assert (mine.box, mine.category) == (theirs.box, theirs.category)


@pytest.mark.parametrize(("kind", "folder"), [("voc", "Annotations"), ("yolo", "labels/val")])
def test_a_folder_of_labels_that_may_not_be_listed_is_named(
    kind: str, folder: str, pack: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pack(kind)
    deny_listing(root / folder, monkeypatch)
    assert f"Cannot list the folder {root / folder}: Permission denied" in refused(root)


def test_entities_and_huge_labels_are_refused(pack: Callable[[str], Path]) -> None:
    root = pack("voc")
    path = root / "Annotations/0.xml"
    path.write_text('<!DOCTYPE a [<!ENTITY b "bbb">]><annotation>&b;</annotation>')
    assert "defines entities" in refused(root)
    with path.open("wb") as file:
        file.truncate(2**26)
    assert "more than 2,097,152 bytes" in refused(root)


@given(data=st.binary(max_size=60) | st.text(alphabet="0123456789. -einfa\n", max_size=60))
def test_no_line_of_labels_ends_in_a_traceback(
    data: bytes | str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    whole = random_dataset(folder / "photos", images=2)
    root = WRITERS["yolo"]({"train": whole}, folder / "yolo")
    raw = data if isinstance(data, bytes) else data.encode()
    (root / "labels/train/0.txt").write_bytes(raw)
    with suppress(UserError):
        open_own(LabelledDataConfig(root=root))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    part=st.sampled_from(["images", "annotations", "categories"]),
    field=st.sampled_from(
        ["id", "image_id", "category_id", "bbox", "segmentation", "width", "file_name", "name", ""]
    ),
    junk=JUNK,
)
def test_no_value_in_a_coco_file_ends_in_a_traceback(
    part: str, field: str, junk: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    whole = random_dataset(folder / "photos", images=3)
    root = WRITERS["coco"]({"train": whole}, folder / "coco")
    file = root / "annotations/train.json"
    content = json.loads(file.read_text())
    if field:
        content[part][0][field] = junk
    else:
        content[part][0] = junk
    file.write_text(json.dumps(content))
    with suppress(UserError):
        open_own(LabelledDataConfig(root=root))


def test_the_verb_data_says_it_all_and_draws(
    pack: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = pack("yolo")
    (root / "labels/train/0.txt").unlink()
    assert cli.main(["data", str(root), "--out", str(tmp_path / "sheets")]) == 0
    said = capsys.readouterr().out
    assert "images: train 4, val 2" in said
    assert "cup" in said
    assert "1 image has no label file" in said
    assert "clove finetune detect" in said
    assert sorted(path.name for path in (tmp_path / "sheets").iterdir()) == ["train.png", "val.png"]
    assert cli.main(["data", str(tmp_path / "photos")]) == 2


def test_crowds_are_told_from_objects(
    pack: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = pack("coco") / "annotations/train.json"
    change_json(file, lambda c: c["annotations"][0].update(iscrowd=1))
    assert cli.main(["data", str(file.parent.parent)]) == 0
    assert "groups (iscrowd), which are no targets: train 1\n" in capsys.readouterr().out
    change_json(file, lambda c: [entry.update(iscrowd=1) for entry in c["annotations"]])
    with pytest.raises(UserError, match="no crowd .* iscrowd: 1 for single objects"):
        DetectConfig().build().read(LabelledDataConfig(root=file.parent.parent))


def test_classes_with_different_keypoints_are_drawn(
    pack: Callable[[str], Path], tmp_path: Path
) -> None:
    root = pack("coco")

    def give_keypoints(content: dict[str, list[dict[str, object]]]) -> None:
        for number, category in enumerate(content["categories"], start=1):
            category["keypoints"] = [f"point {place}" for place in range(number)]
        counts = {category["id"]: n for n, category in enumerate(content["categories"], start=1)}
        for thing in content["annotations"]:
            thing["keypoints"] = [5, 5, 2] * counts[thing["category_id"]]

    for split in ("train", "val"):
        change_json(root / f"annotations/{split}.json", give_keypoints)
    assert cli.main(["data", str(root), "--out", str(tmp_path / "sheets")]) == 0


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("data.yaml", "names: {0: a, b: c}\n", "numbers its classes"),
        ("data.yaml", "names: [a]\nkpt_shape: [2, 3]\nflip_idx: ['1', 0]\n", ""),
        ("data.yaml", "names: [a]\nkpt_shape: [2, 3]\nflip_idx: [[0], null]\n", ""),
    ],
)
def test_odd_values_of_a_data_yaml_are_read_or_refused(
    pack: Callable[[str], Path], name: str, content: str, told: str
) -> None:
    root = pack("yolo")
    (root / name).write_text(f"train: images/train\nval: images/val\n{content}")
    for labels in root.glob("labels/*/*.txt"):
        labels.write_text("0 0.5 0.5 0.25 0.5\n")
    if told:
        assert told in refused(root)
    else:
        assert open_own(LabelledDataConfig(root=root)).keypoint_names == ("point_0", "point_1")


@pytest.mark.parametrize("start", ["/content/cups-1/", "..\\cups\\", "C:\\cups\\"])
def test_folders_of_another_machine_are_those_beside_a_data_yaml(
    start: str, pack: Callable[[str], Path]
) -> None:
    root = pack("yolo")
    expected = {
        split: len(each) for split, each in open_own(LabelledDataConfig(root=root)).items.items()
    }
    names = "names: [a, b, c]\n"
    slash = "/" if "/" in start else "\\"
    (root / "data.yaml").write_text(
        f"{names}path: {start}x\ntrain: {start}images{slash}train\nval: {start}images{slash}val\n"
    )
    found = open_own(LabelledDataConfig(root=root)).items
    assert {split: len(each) for split, each in found.items()} == expected
    (root / "data.yaml").write_text(f"{names}train: {start}train\nval: {start}images{slash}val\n")
    assert "neither a folder nor a list of images" in refused(root)


@pytest.mark.parametrize("odd", ["inf", "nan", "-1e999"])
def test_a_keypoint_that_is_no_number_leaves_its_object_out(
    pack: Callable[[str], Path], odd: str
) -> None:
    root = pack("yolo")
    head = "train: images/train\nval: images/val\nnames: [a]\nkpt_shape: [1, 3]\n"
    (root / "data.yaml").write_text(head)
    for labels in root.glob("labels/*/*.txt"):
        labels.write_text(f"0 0.5 0.5 0.25 0.5 0.5 0.5 2\n0 0.5 0.5 0.25 0.5 0.5 0.5 {odd}\n")
    assert "7 objects have coordinates that are no finite numbers" in told(root)


def test_an_endless_width_in_an_xml_file_is_not_believed(pack: Callable[[str], Path]) -> None:
    root = pack("voc")
    path = next(root.glob("Annotations/*.xml"))
    path.write_text(re.sub("<width>.*</width>", "<width>inf</width>", path.read_text()))
    assert open_own(LabelledDataConfig(root=root)).format == "VOC"


def test_more_objects_than_an_image_can_have_are_refused(pack: Callable[[str], Path]) -> None:
    root = pack("yolo")
    path = next((root / "labels").rglob("*.txt"))
    path.write_text("0 0.5 0.5 0.5 0.5\n" * 10_001)
    assert "has 10,001 labelled objects; expected 10,000 at most" in refused(root)
    path.write_text("0 0.5 0.5 0.5 0.5\n" * 10_000)
    told(root)


def test_pipes_among_labels_do_not_hang(pack: Callable[[str], Path]) -> None:
    root = pack("coco")
    for name in ("other.yaml", "notes.json"):
        os.mkfifo(root / name)
    assert open_own(LabelledDataConfig(root=root)).format == "COCO"
    os.mkfifo(root / "pipe.json")
    with pytest.raises(UserError, match="not a regular file"):
        open_own(LabelledDataConfig(root=root, train_annotations=root / "pipe.json"))


@pytest.mark.parametrize(
    ("mask", "told"),
    [(np.full((8, 9), 7, np.uint8), "has the class 7"), (np.ones((5, 9), np.uint8), "9 x 5")],
)
def test_a_mask_that_does_not_fit_is_named_when_examples_are_drawn(
    tmp_path: Path, mask: NDArray[np.uint8], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, content in (("images", np.zeros((8, 9, 3), np.uint8)), ("masks", mask)):
        (tmp_path / part).mkdir()
        for name in ("a.png", "b.png"):
            Image.fromarray(content).save(tmp_path / part / name)
    (tmp_path / "classes.txt").write_text("background\nthing\n")
    assert cli.main(["data", str(tmp_path), "--out", str(tmp_path / "sheets")]) == 2
    assert told in capsys.readouterr().err


def test_masks_of_one_class_are_refused_and_missing_classes_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for name in range(5):
        Image.new("RGB", (8, 8), (name, 0, 0)).save(tmp_path / f"images/{name}.png")
        mask = np.zeros((8, 8), np.uint8)
        mask[2:4] = 255
        Image.fromarray(mask).save(tmp_path / f"masks/{name}.png")
    (tmp_path / "classes.txt").write_text("background\nsoil\nweed\n")
    assert cli.main(["data", str(tmp_path)]) == 2
    assert "are of one class, 'background', so" in capsys.readouterr().err
    with pytest.raises(UserError, match="Where 255 marks an object, write its number instead"):
        SegmentConfig().build().read(LabelledDataConfig(root=tmp_path))
    for name in range(5):
        Image.fromarray(mask.clip(max=1)).save(tmp_path / f"masks/{name}.png")
    assert cli.main(["data", str(tmp_path)]) == 0
    assert "There is no pixel of 'weed'" in capsys.readouterr().out
    problems = SegmentConfig().build().read(LabelledDataConfig(root=tmp_path)).problems
    assert "There is no pixel of 'weed'" in problems[0]


def test_a_class_name_of_pages_is_refused(pack: Callable[[str], Path]) -> None:
    root = pack("voc")
    (root / "classes.txt").unlink()
    path = next(root.glob("Annotations/*.xml"))
    path.write_text(re.sub("<name>.*?</name>", f"<name>{'x' * 10**5}</name>", path.read_text()))
    assert "a class with 100,000 characters" in refused(root)
