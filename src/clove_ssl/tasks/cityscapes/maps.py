"""Cityscapes' label files as maps of instances: which thing every pixel belongs to.

A pixel is label id * 1000 + number where the label has instances, and the bare label id
elsewhere: on stuff, and on groups whose members nobody told apart ("cargroup"). That is what
``instanceIds.png`` stores. It is made from ``polygons.json`` by drawing one polygon over the other
with Pillow, the farthest first, and so it is here; both files give the same map.

Dimensions: H x W pixels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from clove_ssl.config.regular_files import read_regular
from clove_ssl.data.decode import MAX_PIXELS
from clove_ssl.data.labels.mask_files import mask_file_numbers
from clove_ssl.data.labels.mask_folders import CITYSCAPES_CLASSES
from clove_ssl.errors import UserError, unknown_name
from clove_ssl.tasks.detection.coco_annotations import SLACK, Faulty
from clove_ssl.tasks.labels.rle import RLE, encode_places, first_items
from clove_ssl.tasks.labels.samples import Box

InstanceMap = NDArray[np.int32]  # (H, W)

LARGEST_FILE = 2**28
"""Bytes of the polygons of an image; what is beyond them makes a file no JSON."""

THINGS = {
    name: CITYSCAPES_CLASSES[name]
    for name in ("person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle")
}
"""Names and label ids of the classes whose instances are scored."""

VOID = {
    **{"unlabeled": 0, "ego vehicle": 1, "rectification border": 2, "out of roi": 3, "static": 4},
    **{"dynamic": 5, "ground": 6, "parking": 9, "rail track": 10, "guard rail": 14, "bridge": 15},
    **{"tunnel": 16, "polegroup": 18, "caravan": 29, "trailer": 30, "license plate": -1},
}
"""Labels that nobody scores."""

LABELS = CITYSCAPES_CLASSES | VOID
PER_LABEL = 1000
"""Instances of a label have the ids from this many times its own on."""

_NUMBERED = {*THINGS, "caravan", "trailer"}
_GROUP = "group"
_AGAIN = "Unpack the archive of gtFine again, or correct the file."


@dataclass(frozen=True)
class Polygons:
    """The content of a file of polygons."""

    height: int
    width: int
    objects: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]  # label and corners
    left_out: tuple[str, ...] = ()  # objects with a fault, and which


@dataclass(frozen=True)
class Visible:
    """What can be seen of a thing, or of a group of them."""

    number: int  # in the map
    category: int  # position in THINGS
    box: Box
    mask: RLE

    @property
    def is_group(self) -> bool:
        """Whether this is a group of things that nobody told apart."""
        return self.number < PER_LABEL


def read_instance_map(path: Path) -> InstanceMap:
    """The map (H, W) of a file of polygons or of instance ids."""
    if path.suffix == ".json":
        return paint_polygons(read_polygons(path))
    try:
        _, numbers = mask_file_numbers(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}. {_AGAIN}") from None
    known = np.zeros(1 << 16, bool)
    known[[number for number in LABELS.values() if number >= 0]] = True
    for name in _NUMBERED:
        known[LABELS[name] * PER_LABEL : (LABELS[name] + 1) * PER_LABEL] = True
    if numbers.ndim != 2 or numbers.dtype.kind not in "iu":
        raise UserError(f"{path} has no single channel of instance ids. {_AGAIN}")
    if numbers.min() < 0 or numbers.max() >= len(known) or not known[numbers].all():
        ids = np.unique(numbers).tolist()
        odd = next(one for one in ids if not (0 <= one < len(known) and known[one]))
        raise UserError(
            f"{path} has the instance id {odd}; expected label ids, and for things {PER_LABEL} "
            f"times those plus a number. {_AGAIN}"
        )
    return numbers.astype(np.int32)


def read_polygons(path: Path, *, leave_out: bool = False) -> Polygons:
    """Read a file of polygons; a faulty object is an error, unless it shall be left out."""
    try:
        content = json.loads(read_regular(path, most=LARGEST_FILE).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}. {_AGAIN}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}. {_AGAIN}") from None
    height, width = _size(content, path)
    objects, left_out = [], []
    for number, entry in enumerate(content["objects"]):
        try:
            objects.append(_read_object(entry, height=height, width=width))
        except Faulty as fault:
            message = f"Object {number} of {path} {fault}"
            if not leave_out:
                raise UserError(f"{message} {_AGAIN}") from None
            left_out.append(message)
    shown = tuple(thing for thing in objects if thing is not None)
    return Polygons(height, width, shown, tuple(left_out))


def paint_polygons(polygons: Polygons) -> InstanceMap:
    """Draw the objects in their order, so that later ones cover earlier ones."""
    picture = Image.new("I", (polygons.width, polygons.height), VOID["unlabeled"])
    pen = ImageDraw.Draw(picture)
    counts = dict.fromkeys(_NUMBERED, 0)
    for label, corners in polygons.objects:
        name, is_group = _split_label(label)
        number = LABELS[name]
        if name in _NUMBERED and not is_group:
            number = number * PER_LABEL + counts[name]
            counts[name] += 1
        if number >= 0:
            pen.polygon(corners, fill=number)
    return np.array(picture, np.int32)


def visible_things(instances: InstanceMap) -> Iterator[Visible]:
    """The things and groups of a map, by their numbers."""
    height, width = instances.shape
    pixels = instances.T.ravel()  # column by column, as masks count them
    is_thing = np.isin(np.arange(max(LABELS.values()) + 1), list(THINGS.values()))
    labels = np.where(pixels >= PER_LABEL, pixels // PER_LABEL, pixels)
    places = np.flatnonzero(is_thing[labels])
    order = np.argsort(pixels[places], kind="stable")
    places, numbers = places[order], pixels[places[order]]
    begins = first_items(numbers)
    classes = list(THINGS.values())
    for number, own in zip(numbers[begins].tolist(), np.split(places, begins[1:]), strict=False):
        columns, rows = np.divmod(own, height)
        box = (columns[0], rows.min(), columns[-1] + 1, rows.max() + 1)
        x0, y0, x1, y1 = (float(edge) for edge in box)
        label = number // PER_LABEL if number >= PER_LABEL else number
        mask = encode_places(own, height=height, width=width)
        yield Visible(number, classes.index(label), (x0, y0, x1, y1), mask)


def _size(content: Any, path: Path) -> tuple[int, int]:
    fields = content if isinstance(content, Mapping) else {}
    height, width = fields.get("imgHeight"), fields.get("imgWidth")
    if not (_is_side(height) and _is_side(width)) or height * width > MAX_PIXELS:
        raise UserError(
            f"{path} has imgHeight, imgWidth = {height}, {width}; expected the pixels of its "
            f"image. {_AGAIN}"
        )
    if not isinstance(fields.get("objects"), list):
        raise UserError(f"{path} has no list of objects. {_AGAIN}")
    return height, width


def _is_side(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _read_object(
    entry: Any, *, height: int, width: int
) -> tuple[str, tuple[tuple[float, float], ...]] | None:
    """The label and the corners of an object; nothing for a deleted one."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("label"), str):
        raise Faulty(f"has no label: {str(entry)[:80]}.")
    if entry.get("deleted"):
        return None
    label = entry["label"]
    if _split_label(label)[0] not in LABELS:
        raise Faulty(f"has an unknown label. {unknown_name('label', label, LABELS)}")
    corners = tuple(_corners(entry.get("polygon"), label))
    across, down = zip(*corners, strict=True)
    leaves = max(-min(across), -min(down), max(across) - width, max(down) - height)
    if leaves > SLACK:
        raise Faulty(
            f"is a {label} whose polygon leaves its image of {width} x {height} pixels by "
            f"{leaves:g}."
        )
    return label, corners


def _corners(polygon: Any, label: str) -> Iterator[tuple[float, float]]:
    if not isinstance(polygon, list) or len(polygon) < 3:
        raise Faulty(f"is a {label} with the polygon {str(polygon)[:60]}; expected 3 corners.")
    for corner in polygon:
        if not _is_corner(corner):
            raise Faulty(f"is a {label} with the corner {corner!r}; expected x and y.")
        yield corner[0], corner[1]


def _is_corner(corner: Any) -> bool:
    return (
        isinstance(corner, Sequence)
        and len(corner) == 2
        and all(type(value) in (int, float) and abs(value) < 1e9 for value in corner)
    )


def _split_label(label: str) -> tuple[str, bool]:
    """The class of a label, and whether it names a group."""
    if label not in LABELS and label.endswith(_GROUP):
        return label.removesuffix(_GROUP), True
    return label, False
