"""LabelMe's format: a JSON file beside every image, with the shapes that were drawn.

Polygons, rectangles and circles are objects; polygons of one group are one object. Points of a
group with a box are not read as keypoints; lines have no area. Both are left out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clove_ssl.errors import UserError
from clove_ssl.tasks.labels.samples import Annotation, Sample
from clove_ssl.tasks.loading.images import check_same_size
from clove_ssl.tasks.own.dataset import Found, Item, Problems
from clove_ssl.tasks.own.readers.files import (
    Images,
    check_names,
    listed_or_used,
    read_json,
    sizes_of,
    split_of_path,
    text_field,
)
from clove_ssl.tasks.own.readers.objects import LARGEST_NUMBER, NO_NUMBERS, Size, make_object

OTHER_SHAPES = "shapes are no polygon, rectangle or circle and were left out"
_CIRCLE_CORNERS = 32
_NAMES = ("classes.txt", "labels.txt")

Shape = tuple[str, list[float], bool, Any]  # class, corners, is a rectangle, group


def read_labelme_files(files: Sequence[Path], root: Path, problems: Problems) -> Found:
    """JSON files of LabelMe and their images."""
    contents = {path: _content_of(path) for path in files}
    said = {path: text_field(content, "imagePath") for path, content in contents.items()}
    pairs = Images(root).of_labels(said, problems)
    sizes = sizes_of(pairs.values())
    for path, image in pairs.items():
        _check_said_size(contents[path], image, sizes[image])
    shapes = {
        path: [s for entry in contents[path]["shapes"] if (s := _shape(entry, path, problems))]
        for path in pairs
    }
    names = _class_names({shape[0] for each in shapes.values() for shape in each}, root)
    found = Found("LabelMe", names, category_ids=tuple(range(len(names))))
    for path, image in sorted(pairs.items(), key=lambda pair: pair[1].name):
        height, width = sizes[image]
        things = _objects(shapes[path], names, sizes[image], path, problems)
        sample = Sample(image, image.stem, width, height, things)
        found.add(split_of_path(image, root), Item(sample))
    return found


def _content_of(path: Path) -> Mapping[str, Any]:
    """The content of a file that has a list of shapes."""
    content = read_json(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("shapes"), list):
        raise UserError(f"{path} has no list of shapes. Expected LabelMe's format; take it out.")
    return content


def _check_said_size(content: Mapping[str, Any], image: Path, size: Size) -> None:
    """Shapes that were drawn on an image of another size fit nothing; it may be left out."""
    height, width = content.get("imageHeight"), content.get("imageWidth")
    if type(height) is int and type(width) is int and min(height, width) > 0:
        check_same_size(image, size, (height, width))


def _class_names(used: set[str], root: Path) -> tuple[str, ...]:
    names = listed_or_used(root, _NAMES, used, without={"__ignore__", "_background_"})
    if not names:
        raise UserError(f"No JSON file below {root} has a polygon or rectangle. Label some.")
    check_names(names, root)
    return names


def _shape(entry: Any, path: Path, problems: Problems) -> Shape | None:
    label = text_field(entry, "label").strip()
    points = entry.get("points") if isinstance(entry, Mapping) else None
    kind = text_field(entry, "shape_type") or "polygon"
    if not label or not isinstance(points, list) or not all(map(_is_point, points)):
        problems.add(NO_NUMBERS, path)
        return None
    corners = [float(value) for point in points for value in point]
    group = entry.get("group_id")
    if kind == "polygon" and len(points) >= 3:
        return label, corners, False, group
    if kind == "rectangle" and len(points) in (2, 4):
        xs, ys = corners[0::2], corners[1::2]
        return label, [min(xs), min(ys), max(xs), max(ys)], True, None
    if kind == "circle" and len(points) == 2:
        return label, _circle(corners), False, group
    problems.add(OTHER_SHAPES, f"{kind} in {path}")
    return None


def _objects(
    shapes: Sequence[Shape], names: Sequence[str], size: Size, path: Path, problems: Problems
) -> tuple[Annotation, ...]:
    groups: dict[Any, list[Shape]] = {}
    for number, shape in enumerate(shapes):
        is_grouped = isinstance(shape[3], int | str)
        groups.setdefault((shape[0], shape[3]) if is_grouped else number, []).append(shape)
    found = []
    for members in groups.values():
        label, corners, is_box, _ = members[0]
        category = names.index(label)
        if is_box:
            thing = make_object(category, size, problems, path, box=corners)
        else:
            outlines = [member[1] for member in members]
            thing = make_object(category, size, problems, path, polygons=outlines)
        found += [thing] if thing is not None else []
    return tuple(found)


def _circle(corners: Sequence[float]) -> list[float]:
    """A circle by its centre and a point on it, as a polygon."""
    x, y, on_x, on_y = corners
    radius = math.hypot(on_x - x, on_y - y)
    angles = [2 * math.pi * step / _CIRCLE_CORNERS for step in range(_CIRCLE_CORNERS)]
    return [v for a in angles for v in (x + radius * math.cos(a), y + radius * math.sin(a))]


def _is_point(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(number) in (int, float) and abs(number) < LARGEST_NUMBER for number in value)
    )
