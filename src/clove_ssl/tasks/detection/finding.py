"""Datasets by the folder they were unpacked to, and by single paths.

VOC: the lists of the published protocol (2007 and 2012 trainval, 2007 test) where they are all
there, else the train and test lists of the only year there is. COCO: the official layout
(``annotations/instances_train2017.json`` beside ``train2017/``) and the same with ``train`` and
``test`` or ``val``; image folders may lie below ``images/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clove_ssl.data.labels.pixels import check_folder
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.detection.voc import VOC_CLASSES, read_voc
from clove_ssl.tasks.labels.samples import DetectionDataset, OnFault, Split

CocoTask = Literal["instances", "person_keypoints", "bbox"]
VocList = tuple[int, str]

_PROTOCOL: dict[Split, tuple[VocList, ...]] = {
    "train": ((2007, "trainval"), (2012, "trainval")),
    "test": ((2007, "test"),),
}
_LISTS_OF_ONE_YEAR = (("trainval", "test"), ("train", "test"), ("train", "val"))
AUGMENTED_LISTS = ("train_aug", "trainaug")
"""What people call the published training list of semantic segmentation."""
_COCO_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train2017", "train"),
    "test": ("val2017", "test", "val"),
}


def open_voc(
    root: str | Path,
    split: Split,
    *,
    lists: Sequence[VocList] = (),
    class_names: tuple[str, ...] = VOC_CLASSES,
    faulty: OnFault = "refuse",
) -> DetectionDataset:
    """Read a split below a development kit, or the lists that are named."""
    lists = lists or find_voc_lists(root)[split]
    dataset = read_voc(root, lists, class_names=class_names, faulty=faulty)
    check_rest(dataset, Path(root))
    return dataset


def find_voc_lists(root: str | Path) -> dict[Split, tuple[VocList, ...]]:
    """The lists to train on and to test on."""
    check_folder(Path(root))
    found = _voc_lists_in(Path(root))
    if set(_PROTOCOL["train"] + _PROTOCOL["test"]) <= found:
        return _PROTOCOL
    years = sorted({year for year, _ in found})
    if len(years) == 1:
        for train, test in _LISTS_OF_ONE_YEAR:
            if {(years[0], train), (years[0], test)} <= found:
                return {"train": ((years[0], train),), "test": ((years[0], test),)}
    present = ", ".join(f"{year}:{name}" for year, name in sorted(found)) or "none"
    raise UserError(
        f"{root} has not the lists that VOC is trained and tested with. Expected 2007:trainval, "
        "2012:trainval and 2007:test, or one year with a train and a test list, in "
        f"VOC<year>/ImageSets/Main; found: {present}. Unpack the missing archives, or name lists."
    )


def find_segmentation_lists(root: str | Path) -> dict[Split, str]:
    """The lists of VOC 2012 to segment: train_aug, as published, or else train, and test (or val,
    as the archive calls it)."""
    check_folder(Path(root))
    folders = [Path(root), Path(root) / "VOC2012", Path(root) / "VOCdevkit" / "VOC2012"]
    found = {
        path.stem
        for folder in folders
        for path in (folder / "ImageSets/Segmentation").glob("*.txt")
    }
    for train in (*AUGMENTED_LISTS, "train"):
        for test in ("test", "val"):
            if {train, test} <= found:
                return {"train": train, "test": test}
    raise UserError(
        f"{root} has not the lists that segmentation is trained and tested with. Expected "
        "train.txt and test.txt or val.txt in VOC2012/ImageSets/Segmentation; found: "
        f"{', '.join(sorted(found)) or 'none'}. Unpack the archive of VOC 2012 there; masks of "
        "your own classes are for clove finetune segment."
    )


def parse_voc_lists(text: str) -> tuple[VocList, ...]:
    """Lists from text such as ``2007:trainval,2012:trainval``."""
    lists = []
    for part in text.split(","):
        year, colon, name = part.strip().partition(":")
        if not (_is_year(year) and colon and name):
            raise UserError(
                f"{part.strip()!r} names no list of VOC. Expected years with lists, such as "
                "2007:trainval,2012:trainval."
            )
        lists.append((int(year), name))
    return tuple(lists)


@dataclass(frozen=True)
class CocoFiles:
    """An annotation file and the folder its image names start from."""

    annotations: Path
    images: Path

    @property
    def is_official(self) -> bool:
        """Whether this is COCO's own file, a few boxes of which are known to have no area."""
        return self.annotations.stem.endswith("2017")


def open_coco(
    root: str | Path | None,
    split: Split,
    *,
    task: CocoTask = "instances",
    annotations: str | Path | None = None,
    images: str | Path | None = None,
    faulty: OnFault | None = None,
) -> DetectionDataset:
    """Read a split below a folder; ``annotations`` and ``images`` win over what is found there.

    Faulty annotations are left out of COCO's own files and refused in all others, unless
    ``faulty`` says so; ``left_out`` of the result names them.
    """
    if annotations is not None and images is not None:
        files = CocoFiles(Path(annotations), Path(images))
    elif root is None:
        raise _missing_paths(split, annotations=annotations, images=images)
    else:
        check_folder(Path(root))
        found = find_coco(root, split, task=task, images=images, annotations=annotations)
        files = CocoFiles(Path(annotations or found.annotations), Path(images or found.images))
    dataset = read_coco(
        files.annotations,
        files.images,
        faulty=faulty or ("leave out" if files.is_official else "refuse"),
    )
    if faulty is not None:
        check_rest(dataset, files.annotations)
    return dataset


def find_coco(
    root: str | Path,
    split: Split,
    *,
    task: CocoTask = "instances",
    annotations: str | Path | None = None,
    images: str | Path | None = None,
) -> CocoFiles:
    """The files of a split; one that is given need not be found."""
    folder = Path(root)
    expected = []
    for name in _COCO_NAMES[split]:
        labels = folder / "annotations" / f"{task}_{name}.json"
        expected.append(labels)
        if annotations is None and not labels.is_file():
            continue
        for pictures in (folder / name, folder / "images" / name):
            if images is not None or pictures.is_dir():
                return CocoFiles(labels, pictures)
        if annotations is None:
            raise UserError(
                f"{labels} is there, but its images are not. Expected a folder {folder / name} or "
                f"{folder / 'images' / name}; unpack the archive of {name} there."
            )
    present = sorted(path.name for path in (folder / "annotations").glob("*.json"))
    raise UserError(
        f"{folder} has no {split} split of COCO. Expected {' or '.join(map(str, expected))}, with "
        f"its folder of images; found annotations: {', '.join(present) or 'none'}. Data of your "
        "own are found by clove finetune detect, instances or keypoints."
    )


def check_same_classes(train: DetectionDataset, test: DetectionDataset) -> None:
    """A detector is tested on the classes it was trained with, under the same numbers."""
    mine = dict(zip(train.category_ids, train.class_names, strict=True))
    theirs = dict(zip(test.category_ids, test.class_names, strict=True))
    for identifier in sorted(mine.keys() | theirs.keys()):
        ours, other = mine.get(identifier), theirs.get(identifier)
        if ours != other:
            raise UserError(
                f"Training and test annotations differ in category {identifier}: "
                f"{_named(ours)} in training, {_named(other)} in the test. Expected the same list "
                "of categories in both; correct the one that is wrong."
            )
    if train.keypoint_names != test.keypoint_names:
        raise UserError(
            f"Training annotations name {len(train.keypoint_names)} keypoints "
            f"({', '.join(train.keypoint_names[:3])} ...), those of the test "
            f"{len(test.keypoint_names)} ({', '.join(test.keypoint_names[:3])} ...). Expected the "
            "same names in the same order."
        )


def check_rest(dataset: DetectionDataset, origin: Path) -> None:
    """Refuse a dataset of which leaving out left nothing."""
    if dataset.left_out and not any(sample.annotations for sample in dataset.samples):
        raise UserError(
            f"All {len(dataset.left_out)} annotations of {origin} are faulty, so none is left; the "
            f"first: {dataset.left_out[0]} Correct the annotations; leaving them out is of no use."
        )


def _missing_paths(
    split: Split, *, annotations: str | Path | None, images: str | Path | None
) -> UserError:
    given = {"annotations": annotations, "images": images}
    missing = [f"--data.{split}-{part}" for part, path in given.items() if path is None]
    return UserError(
        "A COCO dataset needs a folder, or both an annotation file and a folder of images. Give "
        f"{' and '.join(missing)}, or --data FOLDER."
    )


def _voc_lists_in(root: Path) -> set[VocList]:
    """All lists of all years below a folder, or of the year that the folder is."""
    years = [*root.glob("VOC2*"), *(root / "VOCdevkit").glob("VOC2*")]
    if root.name.startswith("VOC2"):
        years.append(root)
    return {
        (int(folder.name[3:]), path.stem)
        for folder in years
        if _is_year(folder.name[3:])
        for path in (folder / "ImageSets" / "Main").glob("*.txt")
    }


def _is_year(text: str) -> bool:
    return len(text) == 4 and text.isascii() and text.isdigit()


def _named(name: str | None) -> str:
    return "none" if name is None else repr(name)
