"""LVIS: files of version 1 and 0.5, which are COCO's format and say what was looked for.

No image was searched for all of the 1,203 (or 1,230) classes. So an image lists the classes that
somebody found to be absent (``neg_category_ids``) and those of which more may be there than is
annotated (``not_exhaustive_category_ids``); about all others nothing is known. A class is rare,
common or frequent (``frequency`` r, c, f) by the number of its training images.

Version 1 names images by their address at COCO, ``.../train2017/000000391895.jpg``, and its
validation images come from train2017 as well. Version 0.5 may use the names of 2014, which end
in those of 2017. Folders are searched for all of them:

    coco/annotations/lvis_v1_train.json   lvis_v1_val.json
        /train2017/000000391895.jpg   val2017/...      (or both below images/)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from clove_ssl.data.labels.pixels import check_folder
from clove_ssl.data.whole_files import is_file
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco import load_content, read_content
from clove_ssl.tasks.detection.finding import check_rest
from clove_ssl.tasks.labels.samples import DetectionDataset, OnFault, Split

Frequency = Literal["r", "c", "f"]
Record = Mapping[str, Any]

FREQUENCIES: dict[Frequency, str] = {"r": "rare", "c": "common", "f": "frequent"}
VERSIONS = ("v1", "v0.5")

_NAMES: dict[Split, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}
_NAME_OF_2017 = len("000000391895.jpg")
_ELSEWHERE = "Give a file of LVIS, such as lvis_v1_val.json, or choose coco-fpn for other files."


@dataclass(frozen=True)
class KnownClasses:
    """What is known about the classes of an image, besides those of its objects."""

    absent: frozenset[int]  # classes that are not there
    incomplete: frozenset[int]  # classes of which more may be there than is annotated


@dataclass(frozen=True)
class LVISDataset(DetectionDataset):
    """Samples, classes with their frequency, and what is known about the classes of an image."""

    frequencies: tuple[Frequency, ...] = ()  # (K,)
    known: Mapping[int | str, KnownClasses] = field(default_factory=dict)  # by image


def open_lvis(
    root: Path | None,
    split: Split,
    *,
    annotations: Path | None = None,
    images: Path | None = None,
    versions: Sequence[str] = VERSIONS,
    faulty: OnFault = "refuse",
) -> LVISDataset:
    """Read a split below a folder; ``annotations`` and ``images`` win over what is found there."""
    if root is None and (annotations is None or images is None):
        raise UserError(
            f"LVIS needs a folder, or both an annotation file and a folder of images. Give --data "
            f"FOLDER, or --data.{split}-annotations FILE --data.{split}-images FOLDER."
        )
    if annotations is None:
        assert root is not None
        annotations = _find_annotations(root, split, versions)
    dataset = read_lvis(annotations, images or root or Path(), faulty=faulty)
    check_rest(dataset, annotations)
    return dataset


def read_lvis(
    annotations: str | Path,
    images: str | Path,
    *,
    faulty: OnFault = "refuse",
) -> LVISDataset:
    """Read an annotation file whose images are in or below the folder ``images``."""
    path, folder = Path(annotations), Path(images)
    content = load_content(path)
    _check_frequencies(content["categories"], path)
    split = path.stem.rpartition("_")[2]
    named = [_with_name(entry, path, folder, split) for entry in content["images"]]
    dataset = read_content(content | {"images": named}, path, folder, faulty=faulty)
    classes = {identifier: number for number, identifier in enumerate(dataset.category_ids)}
    frequencies = {entry["id"]: entry["frequency"] for entry in content["categories"]}
    return LVISDataset(
        **{name: getattr(dataset, name) for name in DetectionDataset.__dataclass_fields__},
        frequencies=tuple(frequencies[identifier] for identifier in dataset.category_ids),
        known={
            entry["id"]: KnownClasses(
                _listed_classes(entry, "neg_category_ids", path, classes),
                _listed_classes(entry, "not_exhaustive_category_ids", path, classes),
            )
            for entry in content["images"]
        },
    )


def _find_annotations(root: Path, split: Split, versions: Sequence[str]) -> Path:
    check_folder(root)
    names = [f"lvis_{version}_{name}.json" for version in versions for name in _NAMES[split]]
    for name in names:
        for path in (root / "annotations" / name, root / name):
            if path.is_file():
                return path
    present = sorted(path.name for path in (root / "annotations").glob("*.json"))
    raise UserError(
        f"{root} has no {split} split of LVIS. Expected {' or '.join(names)} in it or in "
        f"{root / 'annotations'}; found: {', '.join(present) or 'none'}. Unpack the archive "
        f"there, or give --data.{split}-annotations FILE."
    )


def _check_frequencies(categories: Iterable[Any], path: Path) -> None:
    for entry in categories:
        if not (isinstance(entry, Mapping) and entry.get("frequency") in get_args(Frequency)):
            raise UserError(
                f"{path} has a category without a frequency of r, c or f: {str(entry)[:120]}. "
                f"Expected it, since rare, common and frequent classes are scored. {_ELSEWHERE}"
            )


def _listed_classes(
    entry: Record, name: str, path: Path, classes: Mapping[int, int]
) -> frozenset[int]:
    listed = entry.get(name)
    if not isinstance(listed, list):
        raise UserError(
            f"Image {entry['id']} of {path} has no list {name}, which says what was looked for in "
            f"it. {_ELSEWHERE}"
        )
    unknown = [one for one in listed if not isinstance(one, int) or one not in classes]
    if unknown:
        raise UserError(
            f"Image {entry['id']} of {path} has {unknown[0]!r} in {name}, which is no category of "
            "the file. Add the category, or take the number out."
        )
    return frozenset(classes[identifier] for identifier in listed)


def _with_name(entry: Any, path: Path, folder: Path, split: str) -> Any:
    """The entry with a ``file_name`` that exists below the folder, if there is one."""
    if not isinstance(entry, Mapping):
        return entry  # the reader of COCO's format says what is wrong with it
    names = list(_possible_names(entry, split))
    if not names:
        raise UserError(
            f"Image {entry.get('id')} of {path} has neither coco_url nor file_name. {_ELSEWHERE}"
        )
    found = (name for name in names if is_file(folder / name))
    return {**entry, "file_name": next(found, names[0])}


def _possible_names(entry: Record, split: str) -> Iterator[str]:
    """Where an image may lie, the usual places first."""
    address, name = entry.get("coco_url"), entry.get("file_name")
    if isinstance(address, str):
        below_split = "/".join(address.split("/")[-2:])
        yield from (below_split, f"images/{below_split}", address.rpartition("/")[2])
    if isinstance(name, str):
        for one in dict.fromkeys((name, name[-_NAME_OF_2017:])):
            for part in ("", f"{split}/", f"{split}2017/"):
                yield from (f"{part}{one}", f"images/{part}{one}")
