"""Built-in scenes as files, in the layout of LVIS version 1.

    annotations/lvis_v1_train.json     train2017/000000000001.png

Everything about a scene is known, so what LVIS does not know is left out on purpose: of the absent
classes only every second one is listed, and where an image has several objects of a class, the
last of them is sometimes not annotated and the class listed as incomplete. Classes are rare,
common and frequent in turns.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

from clove_ssl.atomic import unwritable, write_text
from clove_ssl.data.scenes import SCENE_CLASSES, Scene, SceneSource
from clove_ssl.tasks.detection.scenes import coco_entry
from clove_ssl.tasks.labels.samples import Split
from clove_ssl.tasks.lvis.reader import FREQUENCIES, LVISDataset, read_lvis

_FOLDERS: dict[Split, str] = {"train": "train", "test": "val"}


def write_lvis_scenes(
    folder: str | Path, split: Split = "train", *, count: int, size: int = 160
) -> None:
    """Write scenes 0 to ``count`` - 1 of a split; the annotation file comes last."""
    source = SceneSource(count, size, split)
    root, part = Path(folder), f"{_FOLDERS[split]}2017"
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    try:
        for below in ("annotations", part):
            (root / below).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            scene, name = source.scene(index), f"{part}/{index + 1:012d}.png"
            Image.fromarray(scene.image).save(root / name)
            entry, objects = _describe(scene, index + 1)
            images.append(entry | {"coco_url": f"scenes://{name}", "width": size, "height": size})
            annotations += objects
        for number, annotation in enumerate(annotations, start=1):
            annotation["id"] = number
        content = {"images": images, "annotations": annotations, "categories": _categories()}
        write_text(lvis_scenes_file(root, split), json.dumps(content))
    except OSError as error:
        raise unwritable("Scenes", root, error) from None


def read_lvis_scenes(folder: str | Path, split: Split = "train") -> LVISDataset:
    """Read what :func:`write_lvis_scenes` wrote."""
    return read_lvis(lvis_scenes_file(Path(folder), split), folder)


def lvis_scenes_file(folder: Path, split: Split) -> Path:
    """The annotation file of a split."""
    return folder / "annotations" / f"lvis_v1_{_FOLDERS[split]}.json"


def _describe(scene: Scene, number: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The entry of an image and those of its objects."""
    objects = [coco_entry(thing, number) for thing in scene.objects]
    for entry in objects:
        del entry["iscrowd"]
        entry.pop("keypoints", None)
        entry.pop("num_keypoints", None)
    counts = Counter(entry["category_id"] for entry in objects)
    incomplete = [one for one, count in counts.items() if count > 1 and (one + number) % 2]
    for category in incomplete:
        last = max(n for n, entry in enumerate(objects) if entry["category_id"] == category)
        del objects[last]
    absent = [one for one in range(1, len(SCENE_CLASSES) + 1) if one not in counts]
    image = {
        "id": number,
        "neg_category_ids": [one for one in absent if (one + number) % 2],
        "not_exhaustive_category_ids": incomplete,
    }
    return image, objects


def _categories() -> list[dict[str, Any]]:
    letters = list(FREQUENCIES)
    return [
        {"id": number, "name": name, "frequency": letters[number % len(letters)]}
        for number, name in enumerate(SCENE_CLASSES, start=1)
    ]
