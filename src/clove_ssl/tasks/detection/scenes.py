"""Built-in scenes as files, in VOC's and in COCO's layout.

They stand in where no data is given: the readers, models and scores that work on real
files work on these. The same count, size and split give the same files.

    VOC2012/JPEGImages/train_000000.jpg     images/train/000000.png
           /Annotations/train_000000.xml    annotations/instances_train.json
           /SegmentationClass/train_000000.png          person_keypoints_train.json
           /ImageSets/Main/train.txt
           /ImageSets/Segmentation/train.txt

VOC's images are JPEGs, because its layout says so, and so close to the scene but not
equal; COCO's are equal. COCO's keypoints name pixels, whose middles are the points of the
scene. Lists and annotation files are written last, so a folder whose
writing was interrupted is not mistaken for a complete one.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.data.scenes import KEYPOINT_NAMES, SCENE_CLASSES, Scene, SceneObject, SceneSource
from clove_ssl.tasks.detection.coco import read_coco
from clove_ssl.tasks.detection.voc import read_voc
from clove_ssl.tasks.labels.rle import encode_mask, write_counts
from clove_ssl.tasks.labels.samples import PIXEL_MIDDLE, DetectionDataset, Split

_YEAR = 2012
_PERSON = "person"
_LISTS = ("ImageSets/Main", "ImageSets/Segmentation")


def write_voc_scenes(
    folder: str | Path, split: Split = "train", *, count: int, size: int = 160
) -> None:
    """Write scenes 0 to ``count`` - 1 of a split in VOC's layout."""
    source = SceneSource(count, size, split)
    root = Path(folder) / f"VOC{_YEAR}"
    names = [f"{split}_{index:06d}" for index in range(count)]
    try:
        for part in ("JPEGImages", "Annotations", "SegmentationClass", *_LISTS):
            (root / part).mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(names):
            scene = source.scene(index)
            picture = Image.fromarray(scene.image)
            picture.save(root / "JPEGImages" / f"{name}.jpg", quality=95, subsampling=0)
            _palette_image(scene.semantic).save(root / "SegmentationClass" / f"{name}.png")
            tree = _voc_annotation(scene, name)
            ET.ElementTree(tree).write(root / "Annotations" / f"{name}.xml", encoding="utf-8")
        for part in _LISTS:
            write_text(root / part / f"{split}.txt", "\n".join([*names, ""]))
    except OSError as error:
        raise unwritable("Scenes", root, error) from None


def write_coco_scenes(
    folder: str | Path, split: Split = "train", *, count: int, size: int = 160
) -> None:
    """Write scenes 0 to ``count`` - 1 of a split in COCO's layout."""
    root = Path(folder)
    images, annotations = [], []
    try:
        for scene, image in write_coco_images(root, split, count=count, size=size):
            images.append(image)
            annotations += [coco_entry(thing, image["id"]) for thing in scene.objects]
        for number, entry in enumerate(annotations, start=1):
            entry["id"] = number
        for task, content in _coco_files(images, annotations).items():
            write_text(_coco_path(root, task, split), json.dumps(content))
    except OSError as error:
        raise unwritable("Scenes", root, error) from None


def write_coco_images(
    root: Path, split: Split, *, count: int, size: int
) -> Iterator[tuple[Scene, dict[str, Any]]]:
    """Write the images of a split in COCO's layout; gives each scene and the entry of its image."""
    source = SceneSource(count, size, split)
    for part in (root / "images" / split, root / "annotations"):
        part.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        scene, name = source.scene(index), f"{index:06d}.png"
        Image.fromarray(scene.image).save(root / "images" / split / name)
        yield scene, {"id": index + 1, "file_name": name, "width": size, "height": size}


def read_voc_scenes(folder: str | Path, split: Split = "train") -> DetectionDataset:
    """Read what :func:`write_voc_scenes` wrote."""
    return read_voc(folder, [(_YEAR, split)], class_names=SCENE_CLASSES)


def read_coco_scenes(
    folder: str | Path,
    split: Split = "train",
    *,
    task: Literal["instances", "person_keypoints"] = "instances",
) -> DetectionDataset:
    """Read what :func:`write_coco_scenes` wrote."""
    root = Path(folder)
    return read_coco(_coco_path(root, task, split), root / "images" / split)


def _voc_annotation(scene: Scene, name: str) -> ET.Element:
    height, width, depth = scene.image.shape
    root = ET.Element("annotation")
    _add_texts(root, {"folder": f"VOC{_YEAR}", "filename": f"{name}.jpg"})
    _add_texts(ET.SubElement(root, "size"), {"width": width, "height": height, "depth": depth})
    for thing in scene.objects:
        entry = ET.SubElement(root, "object")
        _add_texts(entry, {"name": SCENE_CLASSES[thing.category - 1], "difficult": 0})
        x0, y0, x1, y1 = (int(edge) for edge in thing.box)
        corners = {"xmin": x0 + 1, "ymin": y0 + 1, "xmax": x1, "ymax": y1}
        _add_texts(ET.SubElement(entry, "bndbox"), corners)
    ET.indent(root)
    return root


def _palette_image(labels: NDArray[np.uint8]) -> Image.Image:
    """Classes as VOC stores them: numbers with a colour each, for people."""
    picture = Image.fromarray(labels)
    picture.putpalette(voc_palette().tobytes())
    return picture


def voc_palette() -> NDArray[np.uint8]:
    """VOC's colours of classes 0 to 255: (256, 3).

    Bits 0, 3, 6 of a number make its red, from the highest bit down; 1, 4, 7 green; 2, 5 blue.
    """
    numbers = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colours[:, bit % 3] |= ((numbers >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


def _add_texts(parent: ET.Element, texts: Mapping[str, object]) -> None:
    for tag, text in texts.items():
        ET.SubElement(parent, tag).text = str(text)


def coco_entry(thing: SceneObject, image: int) -> dict[str, Any]:
    """An object as an annotation of COCO's format, without its number."""
    x0, y0, x1, y1 = thing.box
    rle = encode_mask(thing.mask)
    entry: dict[str, Any] = {
        "image_id": image,
        "category_id": thing.category,
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": rle.area,
        "iscrowd": 0,
        "segmentation": {"size": [rle.height, rle.width], "counts": write_counts(rle.counts)},
    }
    if thing.keypoints is not None:
        labelled = thing.keypoints[:, 2:] > 0
        named = thing.keypoints - np.array([PIXEL_MIDDLE, PIXEL_MIDDLE, 0], np.float32) * labelled
        entry["keypoints"] = named.ravel().tolist()
        entry["num_keypoints"] = int((thing.keypoints[:, 2] > 0).sum())
    return entry


def _coco_files(
    images: list[dict[str, Any]], annotations: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """COCO keeps a file of all classes and one of persons; so does this."""
    categories: list[dict[str, Any]] = [
        {"id": index, "name": name} for index, name in enumerate(SCENE_CLASSES, start=1)
    ]
    person = next(entry for entry in categories if entry["name"] == _PERSON)
    person["keypoints"] = list(KEYPOINT_NAMES)
    persons = [entry for entry in annotations if entry["category_id"] == person["id"]]
    return {
        "instances": _coco_content(images, annotations, categories),
        "person_keypoints": _coco_content(images, persons, [person]),
    }


def _coco_content(
    images: Iterable[Any], annotations: Iterable[Any], categories: Iterable[Any]
) -> dict[str, Any]:
    return {
        "images": list(images),
        "annotations": list(annotations),
        "categories": list(categories),
    }


def _coco_path(root: Path, task: str, split: str) -> Path:
    return root / "annotations" / f"{task}_{split}.json"
