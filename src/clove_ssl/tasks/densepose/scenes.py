"""Built-in scenes as files in DensePose-COCO's format.

    images/train/000000.png
    annotations/densepose_train.json

The figures of the scenes carry the part and the surface coordinates of every pixel, so their
labels are exact: points lie in the middle of visible pixels, drawn at random but the same in every
run. Only part of the figures get labels, as in DensePose-COCO, where every image has persons
without any. The annotation file is written last, so a folder whose writing was interrupted is not
mistaken for a complete one.

Dimensions: P points of a person.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.data.scenes import SCENE_CLASSES, Scene, SceneObject
from clove_ssl.tasks.densepose.labels import SIDE, PersonLabels, runs_of, write_labels
from clove_ssl.tasks.densepose.reader import DensePoseDataset, read_densepose
from clove_ssl.tasks.densepose.surfaces import FigureSurface, Places
from clove_ssl.tasks.detection.scenes import write_coco_images
from clove_ssl.tasks.labels.rle import encode_mask, write_counts
from clove_ssl.tasks.labels.samples import Split

POINTS = 100
"""Points of a person, at most; DensePose-COCO has about as many."""
_PERSON = SCENE_CLASSES.index("person") + 1
_UNLABELLED = 8  # every how many figures there is one without labels
_SPLITS = {"train": 0, "test": 1}


def write_densepose_scenes(
    folder: str | Path, split: Split = "train", *, count: int, size: int = 160
) -> None:
    """Write scenes 0 to ``count`` - 1 of a split."""
    root = Path(folder)
    images: list[dict[str, Any]] = []
    persons: list[dict[str, Any]] = []
    try:
        for scene, image in write_coco_images(root, split, count=count, size=size):
            images.append(image)
            for figure in (thing for thing in scene.objects if thing.category == _PERSON):
                number = len(persons) + 1
                entry = _annotation(scene, figure, draws=_draws(split, number))
                persons.append({"id": number, "image_id": image["id"]} | entry)
        write_text(scenes_file(root, split), json.dumps(_content(images, persons)))
    except OSError as error:
        raise unwritable("Scenes", root, error) from None


def read_densepose_scenes(folder: str | Path, split: Split = "train") -> DensePoseDataset:
    """Read what :func:`write_densepose_scenes` wrote."""
    root = Path(folder)
    dataset = read_densepose(scenes_file(root, split), root / "images" / split)
    body = FigureSurface()
    return replace(dataset, surface=body, mirror=body)


def scenes_file(folder: Path, split: Split) -> Path:
    """The file of a split that is written last."""
    return folder / "annotations" / f"densepose_{split}.json"


def _content(images: list[dict[str, Any]], persons: list[dict[str, Any]]) -> dict[str, Any]:
    category = {"id": 1, "name": "person", "supercategory": "person"}
    return {"images": images, "annotations": persons, "categories": [category]}


def _draws(split: Split, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=_SPLITS[split], counter=[0, 0, 0, number]))


def _annotation(scene: Scene, figure: SceneObject, *, draws: np.random.Generator) -> dict[str, Any]:
    x0, y0, x1, y1 = figure.box
    rle = encode_mask(figure.mask)
    entry: dict[str, Any] = {
        "category_id": 1,
        "iscrowd": 0,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": rle.area,
        "segmentation": {"size": [rle.height, rle.width], "counts": write_counts(rle.counts)},
    }
    if draws.integers(_UNLABELLED) == 0:
        return entry
    return entry | write_labels(_labels(scene, figure, draws))


def _labels(scene: Scene, figure: SceneObject, draws: np.random.Generator) -> PersonLabels:
    rows, columns = np.nonzero(figure.mask & (scene.parts > 0))
    chosen = draws.permutation(len(rows))[:POINTS]
    rows, columns = rows[chosen], columns[chosen]  # (P,)
    x0, y0, x1, y1 = figure.box
    middles = np.stack([columns + 0.5, rows + 0.5], axis=1)  # (P, 2)
    points = (middles - (x0, y0)) * SIDE / (x1 - x0, y1 - y0)
    return PersonLabels(
        points=points,
        places=Places(
            scene.parts[rows, columns].astype(np.int64),
            np.clip(scene.surface[rows, columns].astype(np.float64), 0, 1),
        ),
        runs=runs_of(_in_box(figure)),
    )


def _in_box(figure: SceneObject) -> NDArray[np.bool_]:
    """The mask in the units of its box: (256, 256)."""
    x0, y0, x1, y1 = (int(edge) for edge in figure.box)
    window = figure.mask[y0:y1, x0:x1]
    rows, columns = ((np.arange(SIDE) + 0.5) * length / SIDE for length in window.shape)
    mask: NDArray[np.bool_] = window[rows.astype(np.int64)[:, None], columns.astype(np.int64)]
    return mask
