"""YOLO's format: a text file for every image, with a line for every object.

A line is a class, counted from 0, and shares of the image's width and height: ``x y w h`` of a box
with its middle at x, y; or the corners of a polygon; or a box and its keypoints, where
``data.yaml`` has a ``kpt_shape``. Six decimals are usual, so places are known to a hundredth of
a pixel at best and are rounded to that: whole pixels come back whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clove_ssl.config.plain_yaml import parse_yaml
from clove_ssl.data.names import is_image_name
from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Sample
from clove_ssl.tasks.own.dataset import SPLITS, Found, Item, Problems
from clove_ssl.tasks.own.readers.files import (
    LARGEST_LABELS,
    NO_IMAGE,
    NO_LABELS,
    check_names,
    files_below,
    images_below,
    parts_of_name,
    read_head,
    read_names,
    read_text,
    sizes_of,
    split_of_path,
)
from clove_ssl.tasks.own.readers.yolo_lines import Shape, check_classes, read_object, read_rows

NAMES_FILES = ("classes.txt", "obj.names")
_YAML_SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
_NO_LABELS = ("classes", "train", "val", "valid", "test", "readme", "labels", "notes")


def read_yolo(place: Path, problems: Problems) -> Found:
    """A ``data.yaml``, or a folder with images, labels and a list of class names."""
    if place.is_file():
        content = _read_yaml(place)
        names, shape = _class_names(content, place), _shape(content, place)
        images = dict(_listed_images(content, place))
        _refuse_judging_by_training(content, images, place)
    else:
        listed = next((place / n for n in NAMES_FILES if (place / n).is_file()), None)
        if listed is None:
            raise UserError(
                f"{place} has labels of YOLO's kind, but nothing names their classes. Expected a "
                "data.yaml with `names: [...]`, or a classes.txt with one name a line."
            )
        content, names, shape = {}, read_names(listed), Shape()
        images = {path: split_of_path(path, place) for path in images_below(place)}
    found = Found("YOLO", names, category_ids=tuple(range(len(names))))
    found.keypoint_names = _keypoint_names(content, shape)
    _read_items(found, images, shape, problems)
    root = place.parent if place.is_file() else place
    _note_orphans(root, {label_file(image) for image in images}, problems)
    return found


def _read_items(found: Found, images: Mapping[Path, str], shape: Shape, problems: Problems) -> None:
    labels = {image: label_file(image) for image in images}
    for image in (image for image, path in labels.items() if not path.is_file()):
        problems.add(NO_LABELS, image)
    kept = sorted((i for i in images if labels[i].is_file()), key=lambda path: path.name)
    rows = {image: list(read_rows(labels[image])) for image in kept}
    check_classes(rows, labels, len(found.class_names))
    sizes = sizes_of(kept)
    for image in kept:
        things = []
        for row in rows[image]:
            thing = read_object(row, shape, sizes[image], labels[image], problems)
            things += [thing] if thing is not None else []
        height, width = sizes[image]
        sample = Sample(image, image.stem, width, height, tuple(things))
        found.add(images[image], Item(sample))


def label_file(image: Path) -> Path:
    """Where the labels of an image lie: in ``labels`` instead of ``images``, or beside it."""
    parts = list(image.parts)
    places = [at for at, part in enumerate(parts[:-1]) if part == "images"]
    usual = [Path(*parts[:at], "labels", *parts[at + 1 :]) for at in reversed(places)]
    files = [path.with_suffix(".txt") for path in (*usual, image)]
    # A folder far above may be called images as well, so the one that is there counts.
    return next((file for file in files if file.is_file()), files[0])


def _read_yaml(path: Path) -> dict[str, Any]:
    content = parse_yaml(read_text(path), where=path, such_as="names: [cup, hat]")
    if not isinstance(content, dict) or "names" not in content:
        raise UserError(
            f"{path} has no `names`. Expected a data.yaml with the class names and the folders of "
            "`train` and `val` images."
        )
    return content


def _class_names(content: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    names = content["names"]
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            shown = ", ".join(sorted(map(str, names))[:5])
            raise UserError(
                f"{path} numbers its classes {shown}; expected 0, 1, 2 and so on without a gap, "
                "because labels count from 0. Correct `names`."
            )
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list):
        raise UserError(f"{path} has names of type {type(names).__name__}; expected a list.")
    told = tuple("" if name is None else str(name).strip() for name in names)
    check_names(told, path)
    count = content.get("nc")
    if count is not None and count != len(told):
        raise UserError(
            f"{path} says nc: {count}, but has {len(told)} names. Expected as many; correct one."
        )
    return told


def _shape(content: Mapping[str, Any], path: Path) -> Shape:
    shape = content.get("kpt_shape")
    if shape is None:
        return Shape()
    whole = isinstance(shape, list) and all(type(value) is int for value in shape)
    if not whole or len(shape) != 2 or not 1 <= shape[0] <= 1000 or shape[1] not in (2, 3):
        raise UserError(
            f"{path} has kpt_shape {shape!r}; expected the number of keypoints and the numbers of "
            "each, 2 or 3, such as [17, 3]."
        )
    return Shape(shape[0], shape[1])


def _keypoint_names(content: Mapping[str, Any], shape: Shape) -> tuple[str, ...]:
    """Names that say which points change places in a mirror, as ``flip_idx`` does."""
    swaps = content.get("flip_idx")
    numbers = [swap for swap in swaps if type(swap) is int] if isinstance(swaps, list) else []
    if sorted(numbers) != list(range(shape.points)):
        return tuple(f"point_{number}" for number in range(shape.points))
    return tuple(
        f"point_{number}"
        if other == number
        else f"left_{number}"
        if number < other
        else f"right_{other}"
        for number, other in enumerate(numbers)
    )


def _listed_images(content: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    """Images with their split, from folders or lists of names."""
    base = content.get("path")
    bases = [path.parent / str(base), path.parent] if isinstance(base, str) else [path.parent]
    named = False
    for split in SPLITS:
        given = next((content[key] for key in _YAML_SPLITS[split] if content.get(key)), None)
        for entry in given if isinstance(given, list) else [given]:
            if isinstance(entry, str):
                named = True
                yield from ((image, split) for image in _images_of(entry, bases, path))
    if not named:
        for image in images_below(path.parent):
            yield image, split_of_path(image, path.parent)


def _refuse_judging_by_training(
    content: Mapping[str, Any], images: Mapping[Path, str], path: Path
) -> None:
    """Of an image that is named in two splits, the later counts; nothing may be left to learn."""
    if content.get("train") and images and "train" not in images.values():
        raise UserError(
            f"All images that {path} names as `train` are those of `val` or `test`, too, so there "
            "is none to learn from. Take the other line out: some images are then drawn for "
            "validation."
        )


def _images_of(entry: str, bases: Sequence[Path], path: Path) -> list[Path]:
    # Some tools write ../train/images for a folder that lies beside the file.
    stripped = entry
    while stripped.startswith("../"):
        stripped = stripped.removeprefix("../")
    # Others have the paths of another machine, whose last folders are those beside the file.
    parts = [part for part in parts_of_name(entry) if part not in (".", "..")]
    ends = [path.parent.joinpath(*parts[at:]) for at in range(len(parts) - 1)]
    places = [*(base / each for each in (entry, stripped) for base in bases), *ends]
    for place in places:
        if os.path.isdir(place):
            return images_below(place, named_in=path)
        if os.path.isfile(place) and place.suffix == ".txt":
            lines = read_text(place, largest=LARGEST_LABELS).splitlines()
            names = [line.strip() for line in lines if is_image_name(line.strip())]
            return [_image_of_line(name, place) for name in names]
    raise UserError(
        f"{path} names {entry!r}, which is neither a folder nor a list of images. Expected it at "
        f"{places[0]}; correct the file."
    )


def _image_of_line(name: str, place: Path) -> Path:
    for candidate in (place.parent / name, place.parent.parent / name):
        if os.path.isfile(candidate):
            return candidate
    raise UserError(
        f"{place} lists {name!r}, which is not there. Expected names from {place.parent} on; "
        "correct the list."
    )


def _note_orphans(root: Path, known: set[Path], problems: Problems) -> None:
    others = [path for path in files_below(root, ".txt") if path not in known]
    # A data.yaml may name the same folder in another way: absolute, or through a link.
    really_known = {os.path.realpath(path) for path in known} if others else set()
    for path in others:
        is_label = "labels" in path.parts or path.stem.lower() not in _NO_LABELS
        if is_label and os.path.realpath(path) not in really_known and _looks_like_labels(path):
            problems.add(NO_IMAGE, path)


def _looks_like_labels(path: Path) -> bool:
    words = read_head(path).splitlines()[:1]
    first = words[0].split() if words else []
    return "labels" in path.parts or (len(first) >= 5 and first[0].isdigit())
