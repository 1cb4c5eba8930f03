"""COCO: any annotation file in its format, checked before anything is trained on it.

Category numbers may have gaps; classes are 0 to K - 1 in the order of the numbers.
What the file leaves out has a plain meaning: no ``iscrowd`` is no crowd, no ``area`` is
the area of the box, no ``segmentation`` (or an empty one) is no mask. An id that some
programs write as text, "17", is the number 17.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.decode import MAX_PIXELS
from clove_ssl.data.whole_files import is_file
from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.coco_annotations import Faulty, Place, read_annotation
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, OnFault, Sample, check_size

Record = Mapping[str, Any]

_IDS = ("id", "image_id", "category_id")
_MOST_DIGITS = 18

LARGEST_FILE = 4 * 2**30
"""Bytes; the largest file of COCO has half a gigabyte."""


def read_coco(
    annotations: str | Path,
    images: str | Path,
    *,
    faulty: OnFault = "refuse",
) -> DetectionDataset:
    """Read an annotation file whose image names are below the folder ``images``.

    The first faulty annotation is an error; with "leave out" they are listed in
    ``left_out`` instead. (COCO's own training set has two boxes without area.)
    """
    path = Path(annotations)
    return read_content(load_content(path), path, Path(images), faulty=faulty)


def read_content(
    content: Record,
    path: Path,
    folder: Path,
    *,
    faulty: OnFault = "refuse",
) -> DetectionDataset:
    """Read what :func:`load_content` gave, which may have been changed since; ``path`` names it."""
    categories = _by_id(content["categories"], path, "category")
    listed = _by_id(content["images"], path, "image")
    if not listed:
        raise UserError(f"{path} lists no image. Give a file that lists some under 'images'.")
    _check_files(listed.values(), path, folder)
    _check_unlike(listed, "file_name", path, "Images")
    class_names = tuple(_class_name(entry, path) for entry in categories.values())
    _check_unlike(categories, "name", path, "Categories")
    objects, left_out = _read_objects(
        content["annotations"], path, folder, images=listed, categories=categories, faulty=faulty
    )
    samples = tuple(_sample(entry, path, folder, objects) for entry in listed.values())
    return DetectionDataset(
        samples,
        class_names=class_names,
        category_ids=tuple(categories),
        keypoint_names=_keypoint_names(categories.values(), path),
        left_out=tuple(left_out),
    )


def _read_objects(
    entries: Iterable[Record],
    path: Path,
    folder: Path,
    *,
    images: Mapping[int, Record],
    categories: Mapping[int, Record],
    faulty: OnFault,
) -> tuple[dict[int, list[Annotation]], list[str]]:
    """The annotations of every image, and why others were left out."""
    classes = {identifier: index for index, identifier in enumerate(categories)}
    objects: dict[int, list[Annotation]] = defaultdict(list)
    left_out: list[str] = []
    for identifier, entry in _by_id(entries, path, "annotation").items():
        image = images[_reference(entry, "image_id", path, images)]
        category = _reference(entry, "category_id", path, categories)
        place = Place(
            width=_side(image, "width", path),
            height=_side(image, "height", path),
            category=classes[category],
            keypoints=len(_keypoints_of(categories[category], path)),
        )
        try:
            objects[int(image["id"])].append(read_annotation(entry, place))
        except Faulty as fault:
            _check_entry_size(image, place, path, folder)
            message = f"Annotation {identifier} of {path} {fault}"
            if faulty == "refuse":
                raise UserError(
                    f"{message} Correct the file, or add --data.faulty leave-out."
                ) from None
            left_out.append(message)
    return objects, left_out


def _check_entry_size(image: Record, place: Place, path: Path, folder: Path) -> None:
    file = folder / str(image["file_name"])
    check_size(file, (place.width, place.height), origin=f"Image {image['id']} of {path}")


def load_content(path: Path) -> dict[str, Any]:
    """The content of an annotation file, which has lists of images, annotations, categories."""
    try:
        data = read_regular(path, most=LARGEST_FILE)
        if len(data) > LARGEST_FILE:
            raise UserError(f"{path} has more than {LARGEST_FILE:,} bytes. Give smaller files.")
        content: dict[str, Any] = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8: the byte {data[error.start : error.start + 1]!r} at place "
            f"{error.start:,}. Save it as UTF-8, or export the labels again."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Give the annotation file of COCO's format."
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}. Copy or download it again.") from None
    except RecursionError:
        raise UserError(
            f"{path} has too many lists inside one another. Expected COCO's format with images, "
            "annotations and categories; copy or download it again."
        ) from None
    for part in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(part), list):
            raise UserError(
                f"{path} has no list {part!r}. Expected COCO's format with images, annotations "
                "and categories; a file of predictions has none of them."
            )
        _number_ids(content[part])
    return content


def _number_ids(entries: Iterable[Any]) -> None:
    """Turn ids that are whole numbers written as text into numbers, in place."""
    for entry in entries:
        if isinstance(entry, dict):
            texts = [field for field in _IDS if isinstance(entry.get(field), str)]
            entry.update({field: int(entry[field]) for field in texts if _is_plain(entry[field])})


def _is_plain(text: str) -> bool:
    """Whether the text is how one number is written, and no other: "17", but not "017"."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return is_number and text == str(int(text))


def _by_id(entries: Iterable[Record], path: Path, what: str) -> dict[int, Record]:
    """Entries by their number, in the order of numbers; a number names one entry."""
    found: dict[int, Record] = {}
    for entry in entries:
        identifier = _whole_number(entry, "id", path)
        if identifier in found:
            raise UserError(
                f"{path} has two entries with {what} id {identifier}. Expected every id once; "
                "number them anew where files were joined."
            )
        found[identifier] = entry
    return dict(sorted(found.items()))


def _reference(entry: Record, field: str, path: Path, known: Mapping[int, Record]) -> int:
    value = _whole_number(entry, field, path)
    if value not in known:
        raise UserError(
            f"Annotation {entry['id']} of {path} has {field} {value!r}, which the file does not "
            "list. Add the entry, or take the annotation out."
        )
    return value


def _side(image: Record, field: str, path: Path) -> int:
    length = _whole_number(image, field, path)
    if not 1 <= length <= MAX_PIXELS:
        raise UserError(
            f"Image {image['id']} of {path} has the {field} {str(length)[:20]}; expected the "
            "pixels of its file. Correct the entry."
        )
    return length


def _whole_number(entry: Record, field: str, path: Path) -> int:
    value = _field(entry, field, path)
    if not isinstance(value, int) or isinstance(value, bool):
        cure = (
            "number all entries, and what refers to them" if field in _IDS else "correct the entry"
        )
        raise UserError(
            f"{path} has an entry with {field} {repr(value)[:80]}: {_shown(entry)}. Expected a "
            f"whole number; {cure}."
        )
    return value


def _field(entry: Record, field: str, path: Path) -> Any:
    if not isinstance(entry, Mapping):
        raise UserError(
            f"{path} has {entry!r} in a list of images, annotations or categories. Expected "
            "COCO's format, in which entries have fields; take it out."
        )
    if field not in entry:
        raise UserError(
            f"{path} has an entry without {field!r}: {_shown(entry)}. "
            "Expected COCO's format; add the field."
        )
    return entry[field]


def _shown(entry: Record) -> str:
    text = str(dict(entry))
    return text if len(text) <= 120 else f"{text[:120]} ..."


def _check_files(images: Iterable[Record], path: Path, folder: Path) -> None:
    names = [_file_name(entry, path) for entry in images]
    missing = [name for name in names if not is_file(folder / name)]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(names)} images of {path} are not in {folder}, the first is "
            f"{missing[0][:200]}. Give the folder that the names in the file start from."
        )


def _file_name(entry: Record, path: Path) -> str:
    name = _field(entry, "file_name", path)
    if not isinstance(name, str) or not name:
        raise UserError(
            f"Image {entry['id']} of {path} has the file_name {name!r}; expected the name of its "
            "file as text. Correct the entry."
        )
    return name


def _class_name(entry: Record, path: Path) -> str:
    name = _field(entry, "name", path)
    if type(name) not in (str, int, float) or not str(name).strip():
        raise UserError(
            f"Category {entry['id']} of {path} has the name {repr(name)[:80]}; expected text. "
            "Give it a name."
        )
    return str(name)


def _check_unlike(entries: Mapping[int, Record], field: str, path: Path, what: str) -> None:
    """Refuse two entries of one name, which a model could not tell apart."""
    owners: dict[str, int] = {}
    for identifier, entry in entries.items():
        name = str(_field(entry, field, path))
        if name in owners:
            raise UserError(
                f"{what} {owners[name]} and {identifier} of {path} have the same {field} "
                f"{name!r}. Expected every {field} once; give one of them another, or join the two "
                "under one id."
            )
        owners[name] = identifier


def _sample(
    entry: Record, path: Path, folder: Path, objects: Mapping[int, list[Annotation]]
) -> Sample:
    identifier = int(entry["id"])
    return Sample(
        image=folder / str(entry["file_name"]),
        identifier=identifier,
        width=_side(entry, "width", path),
        height=_side(entry, "height", path),
        annotations=tuple(objects.get(identifier, ())),
    )


def _keypoint_names(categories: Iterable[Record], path: Path) -> tuple[str, ...]:
    """Names of the first class that has keypoints."""
    return next(filter(None, (_keypoints_of(entry, path) for entry in categories)), ())


def _keypoints_of(category: Record, path: Path) -> tuple[str, ...]:
    names = category.get("keypoints") or []
    if not isinstance(names, list):
        raise UserError(
            f"Category {category['id']} of {path} has the keypoints {names!r}; expected a list of "
            "names. Correct the entry."
        )
    return tuple(str(name) for name in names)
