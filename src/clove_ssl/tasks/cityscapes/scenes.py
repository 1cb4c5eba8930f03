"""Built-in scenes as files, in Cityscapes' layout.

    leftImg8bit/train/scenes/scenes_000000_000000_leftImg8bit.png
    gtFine/train/scenes/scenes_000000_000000_gtFine_polygons.json, _instanceIds.png, _labelIds.png

Objects get the names of street scenes; two classes are no scored things, so that there is
something to be ignored. A polygon goes down the left and up the right end of an object's rows:
dents are filled, and what stands in front is drawn over it. In every second scene the last object
of a class with several is called a group.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.data.scenes import SCENE_CLASSES, Scene, SceneSource
from clove_ssl.tasks.cityscapes.maps import PER_LABEL, THINGS, paint_polygons, read_polygons
from clove_ssl.tasks.cityscapes.reader import (
    IMAGE_END,
    LABEL_ENDS,
    CityscapesDataset,
    LabelFile,
    read_cityscapes,
)
from clove_ssl.tasks.labels.samples import Split

FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}
_STREET_NAMES = dict(
    zip(
        SCENE_CLASSES,
        (
            *("rider", "car", "truck", "bus", "train", "motorcycle", "bicycle"),
            *("caravan", "vegetation", "person"),
        ),
        strict=True,
    )
)
_GROUND = "road"


def write_cityscapes_scenes(
    folder: str | Path, split: Split = "train", *, count: int, size: int = 160
) -> None:
    """Write scenes 0 to ``count`` - 1 of a split, one after the other, instance ids last."""
    source = SceneSource(count, size, split)
    root = Path(folder)
    try:
        for index in range(count):
            image = _image_path(root, split, index)
            polygons = cityscapes_scene_labels(root, split, index)
            for path in (image, polygons):
                path.parent.mkdir(parents=True, exist_ok=True)
            scene = source.scene(index)
            Image.fromarray(scene.image).save(image)
            write_text(polygons, json.dumps(_describe(scene, index)))
            _write_maps(polygons)
    except OSError as error:
        raise unwritable("Scenes", root, error) from None


def read_cityscapes_scenes(
    folder: str | Path, split: Split = "train", *, labels: LabelFile = "polygons"
) -> CityscapesDataset:
    """Read what :func:`write_cityscapes_scenes` wrote."""
    return read_cityscapes(folder, FOLDERS[split], labels=labels)


def cityscapes_scene_labels(
    root: Path, split: Split, index: int, *, labels: LabelFile = "polygons"
) -> Path:
    """A label file of a scene; its instance ids are the last that is written of it."""
    return root / "gtFine" / FOLDERS[split] / "scenes" / f"{_name(index)}{LABEL_ENDS[labels]}"


def _image_path(root: Path, split: Split, index: int) -> Path:
    return root / "leftImg8bit" / FOLDERS[split] / "scenes" / f"{_name(index)}{IMAGE_END}"


def _name(index: int) -> str:
    return f"scenes_{index:06d}_{0:06d}"


def _write_maps(polygons: Path) -> None:
    """Write the maps that are drawn from a file of polygons."""
    instances = paint_polygons(read_polygons(polygons))
    labels = np.where(instances >= PER_LABEL, instances // PER_LABEL, instances)
    stem = str(polygons).removesuffix(LABEL_ENDS["polygons"])
    Image.fromarray(labels.astype(np.uint8)).save(f"{stem}_gtFine_labelIds.png")
    Image.fromarray(instances.astype(np.uint16)).save(f"{stem}{LABEL_ENDS['instances']}")


def _describe(scene: Scene, index: int) -> dict[str, Any]:
    height, width = scene.semantic.shape
    frame = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    objects: list[dict[str, Any]] = [{"label": _GROUND, "polygon": frame}]
    labels = [_STREET_NAMES[SCENE_CLASSES[thing.category - 1]] for thing in scene.objects]
    counts = Counter(labels)
    for thing, label in zip(scene.objects, labels, strict=True):
        counts[label] -= 1
        several = labels.count(label) > 1 and label in THINGS
        is_group = several and counts[label] == 0 and index % 2 == 1
        name = f"{label}group" if is_group else label
        objects.append({"label": name, "polygon": _outline(thing.mask)})
    return {"imgHeight": height, "imgWidth": width, "objects": objects}


def _outline(mask: NDArray[np.bool_]) -> list[list[int]]:
    """Down the left end of the rows of a mask (H, W) and up the right one, closed."""
    rows = np.flatnonzero(mask.any(axis=1)).tolist()
    ends = [np.flatnonzero(mask[row])[[0, -1]].tolist() for row in rows]
    left = [[first, row] for row, (first, _) in zip(rows, ends, strict=True)]
    right = [[last, row] for row, (_, last) in zip(rows, ends, strict=True)]
    return [*left, *right[::-1], left[0]]
