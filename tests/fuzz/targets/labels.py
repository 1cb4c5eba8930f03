"""Labels of every format, read as a fine-tuning or a probe reads them, pixels included."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from builders.files.odd_files import encode, photo
from fuzz.formats import damaged_png, damaged_xml, mostly
from fuzz.mutations import damaged_json
from fuzz.target import MEGABYTE, Files, Limit, Target, by_length
from fuzz.targets.images import files_of, with_pixels
from PIL import Image

from clove_ssl.data.decode import MAX_PIXELS
from clove_ssl.data.labels.mask_folders import CityscapesLabels, MaskFolderLabels, mask_classes
from clove_ssl.data.labels.pixels import SceneLabels, VOCLabels
from clove_ssl.tasks.cityscapes.reader import read_cityscapes
from clove_ssl.tasks.cityscapes.scenes import write_cityscapes_scenes
from clove_ssl.tasks.densepose.reader import open_densepose
from clove_ssl.tasks.densepose.scenes import write_densepose_scenes
from clove_ssl.tasks.detection.finding import open_coco, open_voc
from clove_ssl.tasks.detection.scenes import write_coco_scenes, write_voc_scenes
from clove_ssl.tasks.labels.samples import DetectionDataset
from clove_ssl.tasks.loading.images import check_images, read_image
from clove_ssl.tasks.lvis.reader import open_lvis
from clove_ssl.tasks.lvis.scenes import write_lvis_scenes
from clove_ssl.tasks.predictions import read_detections
from clove_ssl.tasks.scoring.results import check_results
from clove_ssl.tasks.semantic.coco import paint

SIDE = 40
DAMAGES = {".json": damaged_json, ".xml": mostly(damaged_xml), ".png": mostly(damaged_png)}
LIMIT = Limit(1.0, 64)


def _target(
    name: str,
    seeds: Callable[[], dict[str, Files]],
    read: Callable[[Path], None],
    *,
    changed: tuple[str, ...] = ("",),
) -> Target:
    """A format of labels; sizes count the pixels that the header of a mask promises."""
    return Target(name, seeds, read, LIMIT, DAMAGES, changed=changed, size=with_pixels)


def _scenes(write: Callable[..., None]) -> Callable[[], dict[str, Files]]:
    """Two built-in scenes in some layout."""
    return lambda: {"scenes": files_of(lambda folder: write(folder, count=2, size=SIDE))}


def _use(dataset: DetectionDataset) -> None:
    """What training does with a dataset: look at its files, read them, draw all masks."""
    check_images(dataset.samples)
    for sample in dataset.samples:
        read_image(sample.image, (sample.height, sample.width))
        paint(sample)


def _with_painted_pixels(data: bytes) -> float:
    """As other labels; polygons are painted on as many pixels as their file says."""
    with suppress(ValueError, RecursionError, TypeError, KeyError, OverflowError):
        content = json.loads(data)
        pixels = int(content["imgHeight"]) * int(content["imgWidth"])
        if 0 < pixels <= MAX_PIXELS:
            return by_length(data) + 3 * pixels / MEGABYTE
    return with_pixels(data)


def _read_cityscapes(folder: Path) -> None:
    _use(read_cityscapes(folder, "train", faulty="leave out"))
    _use(read_cityscapes(folder, "train", labels="instances"))
    CityscapesLabels(folder, "train").load(0)


def _read_voc(folder: Path) -> None:
    names = SceneLabels.class_names[1:]
    _use(open_voc(folder, "train", lists=[(2012, "train")], class_names=names, faulty="leave out"))


def _read_voc_pixels(folder: Path) -> None:
    labels = VOCLabels(folder, "train", class_names=SceneLabels.class_names)
    for index in range(len(labels)):
        labels.load(index)


def _mask_seeds() -> dict[str, Files]:
    mask = np.arange(48, dtype=np.uint8).reshape(6, 8) % 3
    plain = {
        "images/a.jpg": encode(photo(6, 8), "JPEG"),
        "masks/a.png": encode(mask, "PNG"),
    }
    palette = Image.fromarray(mask, "P")
    palette.putpalette(list(range(9)))
    named = plain | {"masks/a.png": encode(palette, "PNG"), "classes.txt": b"sky\nroad\ncar\n"}
    return {"plain": plain, "named": named}


def _read_masks(folder: Path) -> None:
    MaskFolderLabels(folder, "", mask_classes(folder)).load(0)


def _detection_seeds() -> dict[str, Files]:
    box = b'{"image_id": 1, "category_id": 2, "bbox": [1, 2, 3, 4.5], "score": 0.5'
    runs = b', "segmentation": {"size": [10, 20], "counts": "06:4"}'
    points = b', "keypoints": [1, 2, 1, 3, 4, 2]'
    records = b"[%s}, %s%s}, %s%s}]" % (box, box, runs, box, points)
    return {"detections": {"detections.json": records}}


def _read_detections(folder: Path) -> None:
    records = read_detections(folder / "detections.json").records
    for kind in ("box", "mask"):
        check_results(records, images={1: (10, 20)}, categories=[2], kind=kind)


TARGETS = (
    _target(
        "coco",
        _scenes(write_coco_scenes),
        lambda folder: _use(open_coco(folder, "train", faulty="leave out")),
        changed=("json", "jpg", "png"),
    ),
    _target("voc", _scenes(write_voc_scenes), _read_voc, changed=("xml", "jpg", "txt")),
    _target(
        "voc-pixels", _scenes(write_voc_scenes), _read_voc_pixels, changed=("png", "jpg", "txt")
    ),
    _target(
        "lvis",
        _scenes(write_lvis_scenes),
        lambda folder: _use(open_lvis(folder, "train", faulty="leave out")),
        changed=("json",),
    ),
    replace(
        _target("cityscapes", _scenes(write_cityscapes_scenes), _read_cityscapes),
        size=_with_painted_pixels,
    ),
    _target(
        "densepose",
        _scenes(write_densepose_scenes),
        lambda folder: _use(open_densepose(folder, "train", faulty="leave out")),
        changed=("json",),
    ),
    _target("mask-folders", _mask_seeds, _read_masks),
    _target("detections", _detection_seeds, _read_detections),
)
