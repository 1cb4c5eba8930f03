"""VOC's format: an XML file for every image, in ``Annotations`` or beside the image.

Boxes count pixels from 1 and include the last one, as VOC's do. Lists in ``ImageSets/Main`` tell
the splits, or else folders that are called train, valid or test. An object that is marked
difficult is an object like any other.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path

from clove_ssl.errors import UserError
from clove_ssl.tasks.detection.voc import LARGEST_XML
from clove_ssl.tasks.labels.samples import Annotation, Sample, check_size
from clove_ssl.tasks.loading.images import check_same_size
from clove_ssl.tasks.own.dataset import Colour, Found, Item, MaskFile, Problems
from clove_ssl.tasks.own.readers.files import (
    Images,
    check_names,
    listed_or_used,
    read_lists,
    read_text,
    sizes_of,
    split_of_path,
)
from clove_ssl.tasks.own.readers.masks import colours_of_masks, names_of_maps
from clove_ssl.tasks.own.readers.objects import NO_NUMBERS, Size, make_object

NO_NAME = "objects have no class name and were left out"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_NAMES = ("classes.txt", "labels.txt", "labelmap.txt")


def read_voc_files(files: Sequence[Path], root: Path, problems: Problems) -> Found:
    """XML files and the images that they speak of."""
    trees = {path: _parse(path) for path in files}
    said = {path: tree.findtext("filename") or "" for path, tree in trees.items()}
    pairs = Images(root).of_labels(said, problems)
    sizes = sizes_of(pairs.values())
    names = _class_names(trees.values(), root)
    found = Found("VOC", names, category_ids=tuple(range(len(names))))
    found.map_names = names_of_maps(root, names)
    colours = colours_of_masks(root)
    splits = _splits(pairs, root, problems)
    for path, image in sorted(pairs.items(), key=lambda pair: pair[1].name):
        if path not in splits:
            continue
        _check_said_size(trees[path], image, path, sizes[image])
        things = _objects(trees[path], path, names, sizes[image], problems)
        height, width = sizes[image]
        sample = Sample(image, image.stem, width, height, things)
        found.add(splits[path], Item(sample, _label_map(image, colours)))
    return found


def _splits(pairs: dict[Path, Path], root: Path, problems: Problems) -> dict[Path, str]:
    """The split of every file; files that no list names are left out where there are lists."""
    lists = read_lists(root, "Main")
    if not lists:
        return {path: split_of_path(image, root) for path, image in pairs.items()}
    by_name = {path.stem: path for path in pairs}
    found: dict[Path, str] = {}
    for split, names in lists.items():
        for name in names:
            if name in by_name:
                found.setdefault(by_name[name], split)
            else:
                problems.add("listed images have no image or label file and were left out", name)
    for path in (path for path in pairs if path not in found):
        problems.add("labelled images are in no list of ImageSets/Main and were left out", path)
    return found


def _class_names(trees: Iterable[ET.Element], root: Path) -> tuple[str, ...]:
    """Those of a list of names, or all that occur, in the order of the alphabet."""
    used = {_name(entry) for tree in trees for entry in tree.iterfind("object")} - {""}
    names = listed_or_used(root, _NAMES, used, without={"background"})
    if not names:
        raise UserError(f"No XML file below {root} has an <object> with a <name>. Label some.")
    check_names(names, root)
    return names


def _objects(
    tree: ET.Element, path: Path, names: Sequence[str], size: Size, problems: Problems
) -> tuple[Annotation, ...]:
    found = []
    for entry in tree.iterfind("object"):
        name = _name(entry)
        if not name:
            problems.add(NO_NAME, path)
            continue
        corners = [_number(entry.findtext(f"bndbox/{corner}")) for corner in _CORNERS]
        if not all(map(math.isfinite, corners)):
            problems.add(NO_NUMBERS, path)
            continue
        box = (corners[0] - 1, corners[1] - 1, corners[2], corners[3])
        thing = make_object(names.index(name), size, problems, path, box=box)
        found += [thing] if thing is not None else []
    return tuple(found)


def _name(entry: ET.Element) -> str:
    return (entry.findtext("name") or "").strip()


def _check_said_size(tree: ET.Element, image: Path, path: Path, size: Size) -> None:
    """Boxes that were drawn on an image of another size fit nothing; some tools write 0."""
    width, height = (_number(tree.findtext(f"size/{side}")) for side in ("width", "height"))
    if all(1 <= side < math.inf for side in (width, height)):
        check_size(image, (int(width), int(height)), origin=str(path))
        check_same_size(image, size, (int(height), int(width)))


def _label_map(image: Path, colours: tuple[Colour, ...]) -> MaskFile | None:
    path = image.parent.parent / "SegmentationClass" / f"{image.stem}.png"
    return MaskFile(path, colours) if path.is_file() else None


def _parse(path: Path) -> ET.Element:
    text = read_text(path, largest=LARGEST_XML)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise UserError(f"{path} defines entities, which labels have no use for. Take it out.")
    try:
        # With its declaration of an encoding a text would be refused, which is none any more.
        return ET.fromstring(text.encode("utf-8"), parser=ET.XMLParser(encoding="utf-8"))
    except (ET.ParseError, LookupError, ValueError) as error:
        raise UserError(f"{path} is no XML: {error}. Copy it again, or take it out.") from None


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return math.nan
