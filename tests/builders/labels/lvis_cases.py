"""Random datasets in the format of LVIS, and the scores of LVIS's own tools."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as masks

SIDE = 160
CATEGORIES = [
    {"id": 2, "name": "cup", "frequency": "f"},
    {"id": 5, "name": "bird", "frequency": "c"},
    {"id": 11, "name": "axe", "frequency": "r"},
    {"id": 12, "name": "owl", "frequency": "r"},
    {"id": 90, "name": "never seen", "frequency": "c"},
]
IDS = [entry["id"] for entry in CATEGORIES]
Records = list[dict[str, Any]]


def random_case(seed: int, *, whole_numbers: bool = False) -> tuple[dict[str, Any], Records]:
    """Truth with unknown, absent and incomplete classes; predictions with ties."""
    rng = np.random.default_rng(seed)
    images = [_image(rng, 7 * number + 3) for number in range(rng.integers(1, 6))]
    annotations = [
        _annotation(rng, number + 1, int(rng.choice([i["id"] for i in images])), whole_numbers)
        for number in range(rng.integers(0, 14))
    ]
    found = [_near(rng, entry) for entry in annotations for _ in range(rng.integers(0, 4))]
    for _ in range(rng.integers(1, 40)):
        image = int(rng.choice([entry["id"] for entry in images]))
        found.append(_near(rng, _annotation(rng, 0, image, whole_numbers)))
    if rng.random() < 0.1:  # more than count
        found += [_near(rng, found[int(rng.integers(len(found)))]) for _ in range(700)]
    order = rng.permutation(len(found))
    truth = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    return truth, [found[index] for index in order]


def write_case(folder: Path, truth: dict[str, Any]) -> tuple[Path, Path]:
    """The annotation file and the folder of (empty) images."""
    for entry in truth["images"]:
        (folder / entry["file_name"]).touch()
    path = folder / "lvis_v1_val.json"
    path.write_text(json.dumps(truth))
    return path, folder


def official_scores(path: Path, records: Records, kind: str) -> tuple[dict[str, float], np.ndarray]:
    """The summary and the table (T, R, K, A) of LVIS's tools; -1 where nothing was measured."""
    lvis = pytest.importorskip("lvis")
    field = {"box": "bbox", "mask": "segmentation"}[kind]
    kept = ("image_id", "category_id", "score", field)
    alone = [{name: copy.deepcopy(entry[name]) for name in kept} for entry in records]
    truth = lvis.LVIS(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "float", float, raising=False)  # gone since numpy 1.24
        job = lvis.LVISEval(
            truth, lvis.LVISResults(truth, alone), {"box": "bbox", "mask": "segm"}[kind]
        )
        job.run()
    names = {"AR@300": "AR300", "ARs@300": "ARs", "ARm@300": "ARm", "ARl@300": "ARl"}
    summary = {names.get(name, name): float(value) for name, value in job.results.items()}
    return summary, job.eval["precision"]


def _image(rng: np.random.Generator, number: int) -> dict[str, Any]:
    known = rng.permutation(IDS).tolist()
    return {
        "id": number,
        "file_name": f"{number}.png",
        "width": SIDE,
        "height": SIDE,
        "neg_category_ids": known[: int(rng.integers(0, 3))],
        "not_exhaustive_category_ids": known[3 : 3 + int(rng.integers(0, 3))],
    }


def _annotation(
    rng: np.random.Generator, number: int, image: int, whole_numbers: bool
) -> dict[str, Any]:
    sides = rng.choice([6, 20, 40, 100, 120], 2) + rng.integers(0, 8, 2) / 4
    corner = rng.uniform(0, SIDE - sides)
    box = np.concatenate([corner, sides])
    box = (box.round() if whole_numbers else box).tolist()
    return {
        "id": number,
        "image_id": image,
        "category_id": int(rng.choice(IDS[:-1])),
        "bbox": box,
        "area": float(rng.choice([0.0, 0.6, 1.0], p=[0.05, 0.35, 0.6])) * box[2] * box[3],
        "segmentation": [_corners(box)],
    }


def _corners(box: list[float]) -> list[float]:
    x, y, w, h = box
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def _near(rng: np.random.Generator, entry: dict[str, Any]) -> dict[str, Any]:
    """A prediction close to an annotation, sometimes exactly it, with a score that repeats."""
    shift = rng.choice([0.0, 1.0, 4.0, 10.0]) * rng.standard_normal(4) / 2
    box = (np.asarray(entry["bbox"]) + shift.round(1)).tolist()
    box = [max(box[0], 0.0), max(box[1], 0.0), max(box[2], 0.0), max(box[3], 0.0)]
    rle = masks.merge(masks.frPyObjects([_corners(box)], SIDE, SIDE))
    return {
        "image_id": entry["image_id"],
        "category_id": int(rng.choice(IDS)) if rng.random() < 0.2 else entry["category_id"],
        "score": float(rng.choice([0.1, 0.3, 0.3, 0.5, 0.9])),
        "bbox": box,
        "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
    }
