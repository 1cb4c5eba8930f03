"""A user's own labels in every format, as ``clove data`` and a fine-tuning read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random

import numpy as np
from builders.files.odd_files import encode, photo
from fuzz.formats import damaged_png, damaged_xml, mostly
from fuzz.mutations import ODD_VALUES, damaged_json
from fuzz.target import Files, Limit, Target
from fuzz.targets.commands import Refused, damaged_yaml, muted
from fuzz.targets.images import with_pixels

from clove_ssl.config.finetuning import LabelledDataConfig, protocol
from clove_ssl.config.showing import DataConfig
from clove_ssl.errors import UserError
from clove_ssl.tasks.base import Reading, Task, TaskData
from clove_ssl.tasks.own.command import example_rows, show_data
from clove_ssl.tasks.own.finding import open_own

HEIGHT, WIDTH = 20, 24
POINTS = ("left_eye", "right_eye")
_CORNERS = [3.0, 2.0, 17.0, 4.0, 11.5, 14.0]
LIMIT = Limit(1.5, 64)


def _images(*names: str) -> dict[str, bytes]:
    return {
        name: encode(photo(HEIGHT, WIDTH + at), "PNG" if name.endswith(".png") else "JPEG")
        for at, name in enumerate(names)
    }


def _coco(split: str, *, points: bool = False) -> bytes:
    box = {"image_id": 1, "category_id": 2, "bbox": [3, 2, 14, 12], "area": 90.5, "iscrowd": 0}
    runs = {"size": [HEIGHT, WIDTH], "counts": [40, 60, HEIGHT * WIDTH - 100]}
    things = [
        {"id": 1, **box, "segmentation": [_CORNERS]},
        {"id": 2, **box, "category_id": 5, "segmentation": runs, "iscrowd": 1},
    ]
    category = {"id": 2, "name": "cat"}
    if points:
        things = [{"id": 1, **box, "keypoints": [4, 5, 2, 9, 8, 1], "num_keypoints": 2}]
        category |= {"keypoints": list(POINTS), "skeleton": [[1, 2]]}
    image = {"id": 1, "file_name": f"{split}.jpg", "width": WIDTH, "height": HEIGHT}
    categories = [category] if points else [category, {"id": 5, "name": "dog"}]
    content = {"images": [image], "annotations": things, "categories": categories}
    return json.dumps(content).encode()


def _coco_seeds() -> dict[str, Files]:
    image = encode(photo(HEIGHT, WIDTH), "JPEG")
    return {
        name: {f"annotations/{s}.json": _coco(s, points=points) for s in ("train", "val")}
        | {f"{split}/{split}.jpg": image for split in ("train", "val")}
        for name, points in (("outlines", False), ("points", True))
    }


_VOC = b"""<annotation><filename>%s.jpg</filename>
<size><width>%d</width><height>%d</height><depth>3</depth></size>
<object><name>cat</name><difficult>0</difficult><bndbox><xmin>3</xmin><ymin>2</ymin>
<xmax>17.5</xmax><ymax>14</ymax></bndbox></object></annotation>"""


def _voc_seeds() -> dict[str, Files]:
    mask = {
        name: encode(np.ones((HEIGHT, WIDTH + at), np.uint8), "PNG") for at, name in enumerate("ab")
    }
    files: dict[str, bytes] = {"classes.txt": b"cat\ndog\n"}
    for at, name in enumerate(("a", "b")):
        files[f"Annotations/{name}.xml"] = _VOC % (name.encode(), WIDTH + at, HEIGHT)
        files[f"ImageSets/Main/{('train', 'val')[at]}.txt"] = name.encode() + b"\n"
    files |= _images("JPEGImages/a.jpg", "JPEGImages/b.jpg")
    beside = {"a.xml": files["Annotations/a.xml"], "b.xml": files["Annotations/b.xml"]}
    return {
        "lists": files | {f"SegmentationClass/{name}.png": mask[name] for name in "ab"},
        "beside": beside | _images("a.jpg", "b.jpg"),
    }


def _yolo_seeds() -> dict[str, Files]:
    images = _images("images/train/a.jpg", "images/val/b.jpg")
    boxes = b"0 0.5 0.5 0.25 0.5\n1 0.1 0.1 0.7 0.2 0.5 0.75\n"
    outlines = b"1 0.1 0.1 0.7 0.2 0.5 0.75\n"
    points = b"0 0.5 0.5 0.25 0.5 0.4 0.45 2 0.6 0.5 1\n"
    head = b"path: .\ntrain: images/train\nval: images/val\n"
    shape = b"kpt_shape: [2, 3]\nflip_idx: [1, 0]\nnames: {0: cat}\n"
    labels = ("labels/train/a.txt", "labels/val/b.txt")
    listed = {"train.txt": b"images/train/a.jpg\n", "val.txt": b"./images/val/b.jpg\n"}
    lists = b"train: train.txt\nval: [val.txt]\nnc: 2\nnames: [cat, dog]\n"
    return {
        "boxes": images
        | dict.fromkeys(labels, boxes)
        | {"data.yaml": head + b"names:\n  0: cat\n  1: dog\n"},
        "points": images | dict.fromkeys(labels, points) | {"data.yaml": head + shape},
        "lists": images | dict.fromkeys(labels, boxes) | listed | {"data.yaml": lists},
        "names": images | dict.fromkeys(labels, outlines) | {"classes.txt": b"cat\ndog\n"},
    }


def _labelme_seeds() -> dict[str, Files]:
    pairs = [[_CORNERS[at], _CORNERS[at + 1]] for at in (0, 2, 4)]
    shapes = [
        {"label": "cat", "points": pairs, "group_id": None, "shape_type": "polygon"},
        {"label": "dog", "points": pairs[:2], "group_id": 3, "shape_type": "rectangle"},
        {"label": "dog", "points": pairs[1:], "shape_type": "circle", "flags": {}},
    ]
    files = _images("a.jpg", "b.jpg")
    for at, name in enumerate(("a", "b")):
        size = {"imageHeight": HEIGHT, "imageWidth": WIDTH + at, "imageData": None}
        content = {"version": "5.0.1", "shapes": shapes, "imagePath": f"{name}.jpg", **size}
        files[f"{name}.json"] = json.dumps(content).encode()
    names = b"__ignore__\n_background_\ncat\ndog\n"
    return {"plain": files, "named": files | {"labels.txt": names}}


def _mask_seeds() -> dict[str, Files]:
    files = _images("images/a.jpg", "images/b.png")
    for at, name in enumerate(("a", "b")):
        mask = np.arange(HEIGHT * (WIDTH + at), dtype=np.uint8).reshape(HEIGHT, WIDTH + at) % 3
        files[f"masks/{name}.png"] = encode(mask, "PNG")
    return {"named": files | {"classes.txt": b"background\nsky\nroad\n"}, "plain": files}


_WORDS = ("nan", "inf", "-1", "1e400", "1e-320", "0x10", "１", "2.5e0", "9" * 5000, "", "1_0", "-0")


def damaged_rows(data: bytes, chance: Random) -> bytes:
    """Another word in one line of numbers."""
    lines = data.decode().split("\n")
    at = chance.randrange(len(lines))
    words = lines[at].split(" ")
    odd = (*_WORDS, *(str(value)[:6000] for value in ODD_VALUES))
    words[chance.randrange(len(words))] = chance.choice(odd)
    lines[at] = " ".join(words)
    return "\n".join(lines).encode("utf-8", "replace")


DAMAGES = {
    ".json": damaged_json,
    ".xml": mostly(damaged_xml),
    ".png": mostly(damaged_png),
    ".yaml": mostly(damaged_yaml),
    ".txt": mostly(damaged_rows),
}


def _use(folder: Path, *, tasks: tuple[str, ...]) -> None:
    """Show the data, draw an example, and read all of them as each task would."""
    refused = 0
    steps = [partial(_show, folder), *(partial(_read_as, task, folder) for task in tasks)]
    for step in steps:
        try:
            step()
        except UserError:
            refused += 1
    if refused == len(steps):
        raise Refused


def _show(folder: Path) -> None:
    with muted():
        show_data(DataConfig(data=folder))
    data = open_own(LabelledDataConfig(root=folder))
    for split in data.items:
        example_rows(data, split, count=1)


def _read_as(name: str, folder: Path) -> None:
    task = _task(name)
    data = task.read(LabelledDataConfig(root=folder))
    task.adapted(data, on_gpu=False)
    _load(task, data)


@cache  # looking for plug-ins takes longer than reading
def _task(name: str) -> Task:
    return protocol(name, Path("out"), "random").task.build()


def _load(task: Task, data: TaskData) -> None:
    """Every batch of an epoch, and every test image."""
    reading = Reading.alone(batch=1, steps=data.train_images)
    for _ in task.training_batches(data, reading):
        pass
    for _ in task.test_batches(data, reading):
        pass


def _target(
    name: str, seeds: Callable[[], dict[str, Files]], *tasks: str, changed: tuple[str, ...] = ("",)
) -> Target:
    return Target(
        name,
        seeds,
        partial(_use, tasks=tasks),
        LIMIT,
        DAMAGES,
        changed=changed,
        refusals=(Refused,),
        size=with_pixels,
    )


TARGETS = (
    _target("own-coco", _coco_seeds, "instances", "keypoints", "segment", changed=(".json",)),
    _target("own-voc", _voc_seeds, "detect", "segment", changed=(".xml", ".txt", ".png")),
    _target("own-yolo", _yolo_seeds, "detect", "keypoints", "segment", changed=(".txt", ".yaml")),
    _target("own-labelme", _labelme_seeds, "instances", "segment", changed=(".json", ".txt")),
    _target("own-masks", _mask_seeds, "segment", changed=(".png", ".txt")),
)
