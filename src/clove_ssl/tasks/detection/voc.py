"""PASCAL VOC: images and boxes in the layout of its development kit.

    VOCdevkit/VOC2007/JPEGImages/000005.jpg
                     /Annotations/000005.xml
                     /ImageSets/Main/trainval.txt

VOC counts pixels from 1 and includes the last, so xmin and ymin lose 1 on the way to
edges on whole numbers. Difficult objects are kept and marked. A file that does not say
whether an object is difficult means that it is not.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.labels import pixels as labelled
from clove_ssl.data.whole_files import is_file
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.tasks.detection.coco_annotations import SLACK, Faulty
from clove_ssl.tasks.labels.samples import (
    Annotation,
    Box,
    DetectionDataset,
    OnFault,
    Sample,
    check_size,
)

VOC_CLASSES = labelled.VOC_CLASSES[1:]  # boxes have no background

LARGEST_XML = 2 * 2**20
"""Bytes of the labels of one image, which have thousands; XML in memory is twenty times larger."""
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_voc(
    root: str | Path,
    splits: Sequence[tuple[int, str]],
    *,
    class_names: tuple[str, ...] = VOC_CLASSES,
    faulty: OnFault = "refuse",
) -> DetectionDataset:
    """Read lists such as ``[(2007, "trainval"), (2012, "trainval")]``, one after another.

    The first box that cannot be right is an error; with "leave out" they are listed in
    ``left_out`` instead.
    """
    samples: list[Sample] = []
    left_out: list[str] | None = [] if faulty == "leave out" else None
    seen: set[Path] = set()
    for year, split in splits:
        folder = _find_year(Path(root), year)
        for name in _read_list(folder / "ImageSets" / "Main", split):
            sample = _read_sample(folder, name, class_names, left_out)
            if sample.image in seen:
                raise UserError(
                    f"{sample.image} is listed twice, the second time by {year} {split}. "
                    "Expected lists that share no image; take one of them off."
                )
            seen.add(sample.image)
            samples.append(sample)
    if not samples:
        raise UserError(f"No split of {root} was asked for. Give one, such as (2007, 'trainval').")
    return DetectionDataset(
        tuple(samples),
        class_names,
        tuple(range(len(class_names))),
        left_out=tuple(left_out or ()),
    )


def _find_year(root: Path, year: int) -> Path:
    labelled.check_folder(root)
    name = f"VOC{year}"
    candidates = [root / name, root / "VOCdevkit" / name, *([root] if root.name == name else [])]
    for folder in candidates:
        if (folder / "Annotations").is_dir():
            return folder
    raise UserError(
        f"{root} holds no {name} with a folder Annotations. Expected {root / name}; unpack the "
        f"archive of VOC {year} there, or give the folder VOCdevkit."
    )


def _read_list(folder: Path, split: str) -> Iterable[str]:
    return [line.split()[0] for line in labelled.list_lines(folder, split)]


def _read_sample(
    folder: Path, name: str, class_names: tuple[str, ...], left_out: list[str] | None
) -> Sample:
    """An image with its objects; faulty ones go to ``left_out``, or are an error without it."""
    image = folder / "JPEGImages" / f"{name}.jpg"
    if not is_file(image):
        raise UserError(
            f"{str(image)[:400]} is in the list of its split but does not exist. Unpack the VOC "
            "archive again, or take the name off the list."
        )
    path = folder / "Annotations" / f"{name}.xml"
    root = _parse(path)
    width, height = (_side(root, f"size/{side}", path) for side in ("width", "height"))
    annotations = []
    for entry in root.findall("object"):
        try:
            annotations.append(
                _read_object(entry, path, class_names=class_names, size=(width, height))
            )
        except Faulty as fault:
            check_size(image, (width, height), origin=str(path))
            if left_out is None:
                raise UserError(
                    f"{fault} Correct the file, or add --data.faulty leave-out."
                ) from None
            left_out.append(str(fault))
    return Sample(image, name, width, height, tuple(annotations))


def _read_object(
    entry: ET.Element, path: Path, *, class_names: tuple[str, ...], size: tuple[int, int]
) -> Annotation:
    name = (entry.findtext("name") or "").strip()
    if name not in class_names:
        raise _unknown_class(name, path, class_names)
    xmin, ymin, xmax, ymax = (_number(entry, f"bndbox/{corner}", path) for corner in _CORNERS)
    box = (xmin - 1, ymin - 1, xmax, ymax)
    _check_box(box, path, name=name, size=size)
    flag = entry.find("difficult")
    difficult = flag is not None and _number(entry, "difficult", path) != 0
    area = (box[2] - box[0]) * (box[3] - box[1])
    return Annotation(box, class_names.index(name), area, difficult=difficult)


def _unknown_class(name: str, path: Path, class_names: tuple[str, ...]) -> UserError:
    step = (
        "Correct the file; objects of other classes are for clove finetune detect, which reads "
        "this format, too."
    )
    if not name:
        return UserError(f"{path} has an <object> without a <name>; expected its class. {step}")
    return UserError(f"{unknown_name(f'class in {path}', name, class_names)} {step}")


def _check_box(box: Box, path: Path, *, name: str, size: tuple[int, int]) -> None:
    x0, y0, x1, y1 = box
    width, height = size
    inside = min(x0, y0) >= -SLACK and x1 <= width + SLACK and y1 <= height + SLACK
    if not (x0 < x1 and y0 < y1 and inside):
        raise Faulty(
            f"{path} has a {name} with xmin, ymin, xmax, ymax = {x0 + 1:g}, {y0 + 1:g}, {x1:g}, "
            f"{y1:g} in an image of {width} x {height} pixels; expected a box of at least one "
            "pixel inside the image."
        )


def _parse(path: Path) -> ET.Element:
    try:
        data = read_regular(path, most=LARGEST_XML)
        if len(data) > LARGEST_XML:
            raise UserError(
                f"{path} has more than {LARGEST_XML:,} bytes, which no labels of one image have. "
                "Unpack the VOC archive again."
            )
        return ET.fromstring(data)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Unpack the VOC archive again, or take the "
            "name off the list."
        ) from None
    except (ET.ParseError, LookupError, ValueError) as error:  # the last two of odd encodings
        raise UserError(f"{path} is no XML: {error}. Unpack the VOC archive again.") from None


def _side(root: ET.Element, tag: str, path: Path) -> int:
    length = _number(root, tag, path)
    if not (length >= 1 and length.is_integer()):
        raise UserError(
            f"{path} has {tag} {length:g}; expected the pixels of its image. Unpack the VOC "
            "archive again, or correct the file."
        )
    return int(length)


def _number(entry: ET.Element, tag: str, path: Path) -> float:
    text = entry.findtext(tag)
    try:
        return float(text or "")
    except ValueError:
        raise UserError(
            f"{path} has {tag} {text!r} in <{entry.tag}>; expected a number. Unpack the VOC "
            "archive again, or correct the file."
        ) from None
