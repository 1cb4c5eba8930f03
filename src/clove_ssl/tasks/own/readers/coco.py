"""COCO's format: a file for every split, or one file for all images.

Classes are known by their names; a file that numbers them otherwise than the first one is read
all the same. Images lie beside the file, or in a folder that is called like the split. Where none
does, as after an export that wrote the paths of another machine, names are known by their ends.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco import load_content, read_content
from clove_ssl.tasks.labels.samples import DetectionDataset, Sample
from clove_ssl.tasks.loading.images import size_of_file
from clove_ssl.tasks.own.dataset import ALL, Found, Item, Problems
from clove_ssl.tasks.own.readers.files import (
    check_names,
    images_below,
    parts_of_name,
    split_of,
    split_of_path,
)
from clove_ssl.tasks.own.readers.objects import (
    CUT,
    LARGEST_NUMBER,
    OUTSIDE,
    SLACK,
    cut_box,
    extent,
)

NO_IMAGE = "images are listed but not there, and were left out"
_LOOKED_AT = 50  # names, to find the folder of the images
_PREFERRED = {"keypoints": ("keypoints",), "instances": ("instances",), "detect": ("instances",)}

NO_NUMBER = -(2**62)
"""Stands for what is no whole number."""

Content = dict[str, Any]


@dataclass(frozen=True)
class CocoFile:
    """An annotation file; the folder of its images and its split may be left to be found."""

    path: Path
    images: Path | None = None
    split: str = ""


def read_coco_files(files: Sequence[CocoFile], root: Path, problems: Problems) -> Found:
    """Annotation files of one data set."""
    found = Found("COCO", ())
    folders: set[Path] = set()
    for file in files:
        split = file.split or _split_of_file(file.path, root)
        content = load_content(file.path)
        folder = _find_images(content, file)
        if folder is None:
            folder, content["images"] = _known_by_their_ends(content["images"], file, found)
        folders.add(folder)
        dataset = _read_content(content, file.path, folder, problems)
        classes = _join_classes(found, dataset)
        for sample in dataset.samples:
            found.add(split, Item(_renumbered(sample, classes)))
    for split, items in found.items.items():
        found.items[split] = sorted(items, key=lambda item: item.sample.image.name)
    _note_unlisted(found, folders, problems)
    return found


def _note_unlisted(found: Found, folders: set[Path], problems: Problems) -> None:
    """Images that lie with the others but are in no file."""
    listed = {os.path.normpath(i.sample.image) for each in found.items.values() for i in each}
    beside = {os.path.normpath(image) for folder in folders for image in images_below(folder)}
    for path in sorted(beside - listed):
        problems.add("images are in no annotation file and were left out", path)


def one_file_per_split(files: Sequence[Path], root: Path, task: str) -> list[CocoFile]:
    """The file of every split; where there are several for one, those that are for the task."""
    by_split: dict[str, list[Path]] = {}
    for path in files:
        by_split.setdefault(_split_of_file(path, root), []).append(path)
    chosen = []
    for split, paths in by_split.items():
        words = _PREFERRED.get(task, ())
        fitting = [path for path in paths if any(word in path.stem for word in words)]
        if len(paths) > 1 and len(fitting) != 1:
            raise UserError(
                f"{root} has {len(paths)} annotation files of COCO's format for one split "
                f"({split}): {', '.join(path.name for path in paths[:6])}. Give the one you mean: "
                "--data.train-annotations FILE --data.test-annotations FILE, or --data FILE."
            )
        chosen.append(CocoFile(paths[0] if len(paths) == 1 else fitting[0]))
    return chosen


def _split_of_file(path: Path, root: Path) -> str:
    from_name = split_of(path.stem)
    return from_name if from_name != ALL else split_of_path(path, root)


def _read_content(
    content: Content, path: Path, folder: Path, problems: Problems
) -> DetectionDataset:
    images = _with_sizes(_present(content["images"], folder, problems), folder)
    known = [entry for entry in images if isinstance(entry, dict)]
    sizes = {number: e for e in known if (number := _whole(e.get("id"))) != NO_NUMBER}
    _check_numbering(content, path)
    # Those of images that are not there go; those of images that nobody lists are a fault.
    gone = _ids(content["images"], "id") - sizes.keys()
    entries = [
        _cut(entry, sizes, path, problems) if isinstance(entry, dict) else entry
        for entry in content["annotations"]
        if not (isinstance(entry, dict) and _whole(entry.get("image_id")) in gone)
    ]
    cleaned = {**content, "images": images, "annotations": [e for e in entries if e is not None]}
    dataset = read_content(cleaned, path, folder, faulty="leave out")
    for message in dataset.left_out:
        problems.add("annotations are faulty and were left out", message)
    check_names(dataset.class_names, path)
    return dataset


def _present(images: Sequence[Any], folder: Path, problems: Problems) -> list[dict[str, Any]]:
    """Entries whose files are there, and those whose faults are for others to name."""
    kept = []
    for entry in images:
        name = entry.get("file_name") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and not os.path.isfile(folder / name):
            problems.add(NO_IMAGE, folder / name)
        else:
            kept.append(dict(entry) if isinstance(entry, Mapping) else entry)
    return kept


def _with_sizes(images: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Entries without a width and height get those of their files."""
    for entry in images:
        if isinstance(entry, dict) and not {"width", "height"} <= entry.keys():
            name = entry.get("file_name")
            if isinstance(name, str) and os.path.isfile(folder / name):
                entry["height"], entry["width"] = size_of_file(folder / name)
    return images


def _cut(
    entry: dict[str, Any], sizes: Mapping[int, Any], path: Path, problems: Problems
) -> dict[str, Any] | None:
    """The annotation with its box inside the image, or nothing where no box is left."""
    outline = entry.get("segmentation")
    box: Any = entry.get("bbox")
    if box is None and isinstance(outline, list) and outline and all(map(_is_outline, outline)):
        x0, y0, x1, y1 = extent(outline)
        box = [x0, y0, x1 - x0, y1 - y0]
    image = sizes.get(_whole(entry.get("image_id")), {})
    sides = [_whole(image.get(side)) for side in ("height", "width")]
    if min(sides) < 1 or max(sides) > LARGEST_NUMBER or not _is_numbers(box, 4):
        return entry
    whole = (box[0], box[1], box[0] + box[2], box[1] + box[3])
    inside = cut_box(whole, (sides[0], sides[1]))
    where = f"annotation {entry.get('id')} of {path.name}, image {image.get('file_name')}"
    if inside[0] >= inside[2] or inside[1] >= inside[3]:
        problems.add(OUTSIDE, where)
        return None
    if max(abs(a - b) for a, b in zip(whole, inside, strict=True)) <= SLACK:
        return {**entry, "bbox": list(box)}
    problems.add(CUT, where)
    x0, y0, x1, y1 = inside
    return {**entry, "bbox": [x0, y0, x1 - x0, y1 - y0]}


def _check_numbering(content: Content, path: Path) -> None:
    """Say what is wrong where annotations count classes from 0 and the list from 1, or so."""
    listed = _ids(content["categories"], "id")
    used = _ids(content["annotations"], "category_id")
    if not listed or used <= listed:
        return
    for shift, first in ((1, "0"), (-1, "1")):
        if {value + shift for value in used} <= listed:
            raise UserError(
                f"The annotations of {path} count classes from {first} (ids {min(used)} to "
                f"{max(used)}), but its categories have the ids {min(listed)} to {max(listed)}. "
                f"Expected the same ids in both; add {shift} to every category_id, or number the "
                "categories like the annotations."
            )


def _ids(entries: Sequence[Any], field: str) -> set[int]:
    """The whole numbers in a field of entries; what is none is for others to name."""
    found = {_whole(entry.get(field)) for entry in entries if isinstance(entry, Mapping)}
    return found - {NO_NUMBER}


def _find_images(content: Content, file: CocoFile) -> Path | None:
    """The folder that most of the first image names start from; nothing if it is none."""
    path = file.path
    texts = [name for entry in content["images"] if (name := _name_of(entry))]
    if file.images is not None:
        is_there = any(os.path.isfile(file.images / name) for name in texts)
        return file.images if is_there else None
    stem = path.stem.rpartition("_")[2]
    inner = ("", "images", stem, split_of(stem), f"images/{stem}", f"images/{split_of(stem)}")
    more = ("train", "val", "valid", "test", "images/train", "images/val", "images/test", "data")
    folders = [
        base / name
        for name in dict.fromkeys((*inner, *more))
        for base in (path.parent, path.parent.parent)
    ]
    looked_at = texts[:_LOOKED_AT]
    hits = {folder: sum(os.path.isfile(folder / name) for name in looked_at) for folder in folders}
    best = max(hits, key=lambda folder: hits[folder])
    return best if hits[best] else None


def _known_by_their_ends(
    images: Sequence[Any], file: CocoFile, found: Found
) -> tuple[Path, list[Any]]:
    """A folder, and the entries with names that start from it.

    Exports hold absolute paths, backslashes and addresses: ``C:\\work\\cups\\1.jpg``.
    """
    named = {name: _parts(name) for entry in images if (name := _name_of(entry))}
    if not named:
        raise UserError(
            f"{file.path} lists no images with a file_name. Expected COCO's format with an entry "
            "for every image; export the labels again."
        )
    places = [file.images or file.path.parent]
    if file.images is None and file.path.parent.name == "annotations":
        places.append(file.path.parent.parent / "images")
    for folder in (place for place in places if place.is_dir()):
        known = _files_meant(named, folder, file)
        if known and len(set(known.values())) == len(known):
            first = next(iter(known))
            found.notes.append(
                f"The names of images in {file.path.name} lead nowhere, so files are known by the "
                f"ends of their names: {first} is {known[first]}."
            )
            return folder, [
                {**entry, "file_name": os.path.relpath(known[name], folder)}
                if (name := _name_of(entry)) in known
                else entry
                for entry in images
            ]
    raise UserError(
        f"None of the images of {file.path} was found, the first is {next(iter(named))!r}. "
        f"Expected files of these names below {' or '.join(map(str, places))}; or give the folder "
        "that they start from: --data.train-images FOLDER --data.train-annotations FILE."
    )


def _files_meant(
    named: Mapping[str, Sequence[str]], folder: Path, file: CocoFile
) -> dict[str, Path]:
    """Of the files called like the last part of a name that which shares the most parts with it.

    Names without folders are left alone, and so is what lies in another split, and what several
    files may be: many photos are called 0001.jpg.
    """
    below: dict[str, list[Path]] = {}
    for image in images_below(folder):
        below.setdefault(image.name, []).append(image)
    known: dict[str, Path] = {}
    for name, parts in named.items():
        splits = {file.split, split_of(file.path.stem), split_of(*parts[:-1])} - {"", ALL}
        shared = {
            image: len(os.path.commonprefix([list(parts)[::-1], list(image.parts)[::-1]]))
            for image in below.get(parts[-1], ())
            if not splits or split_of_path(image, folder) in (ALL, *splits)
        }
        best = [image for image, count in shared.items() if count == max(shared.values())]
        if len(parts) > 1 and len(best) == 1:
            known[name] = best[0]
    return known


def _name_of(entry: Any) -> str:
    name = entry.get("file_name") if isinstance(entry, Mapping) else None
    return name if isinstance(name, str) else ""


def _parts(name: str) -> list[str]:
    """Folders and file of a name, from whatever system; of an address without its question."""
    if re.match(r"[a-z][a-z0-9]+://", name):
        name = unquote(urlsplit(name).path)
    return parts_of_name(name) or [""]


def _join_classes(found: Found, dataset: DetectionDataset) -> tuple[int, ...]:
    """Add the classes of a file that are new; gives the place of each of its classes."""
    names, ids = list(found.class_names), list(found.category_ids)
    for name, identifier in zip(dataset.class_names, dataset.category_ids, strict=True):
        if name not in names:
            names.append(name)
            ids.append(identifier if identifier not in ids else max(ids) + 1)
    if found.keypoint_names and dataset.keypoint_names not in ((), found.keypoint_names):
        raise UserError(
            f"One annotation file names the keypoints {', '.join(found.keypoint_names[:4])} ..., "
            f"another {', '.join(dataset.keypoint_names[:4])} ... Expected the same in all."
        )
    found.class_names, found.category_ids = tuple(names), tuple(ids)
    found.keypoint_names = found.keypoint_names or dataset.keypoint_names
    return tuple(names.index(name) for name in dataset.class_names)


def _renumbered(sample: Sample, classes: Sequence[int]) -> Sample:
    things = tuple(
        replace(thing, category=classes[thing.category], target_box=None)
        for thing in sample.annotations
    )
    return replace(sample, annotations=things)


def _whole(value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole else NO_NUMBER


def _is_numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(each) in (int, float) and abs(each) < LARGEST_NUMBER for each in value)
    )


def _is_outline(value: Any) -> bool:
    return isinstance(value, list) and len(value) >= 6 and _is_numbers(value, len(value))
