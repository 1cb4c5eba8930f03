"""Small random datasets in COCO's format, with everything that is special about it."""

from __future__ import annotations

from typing import Any

import numpy as np
from pycocotools import mask as masks

SIDE = 160
CATEGORIES = [
    {"id": 2, "name": "cup"},
    {"id": 5, "name": "bird"},
    {"id": 11, "name": "person", "keypoints": [f"point {k}" for k in range(17)]},
    {"id": 90, "name": "never seen"},
]


def random_case(seed: int, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ground truth with crowds, empty images and classes; predictions with ties."""
    rng = np.random.default_rng(seed)
    images = [{"id": 7 * n + 3, "width": SIDE, "height": SIDE} for n in range(rng.integers(1, 6))]
    annotations = [
        _annotation(rng, number + 1, int(rng.choice([i["id"] for i in images])), kind)
        for number in range(rng.integers(0, 14))
    ]
    truth = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    found = [_near(rng, entry, kind) for entry in annotations for _ in range(rng.integers(0, 4))]
    for _ in range(rng.integers(1, 26)):
        stray = _annotation(rng, 0, int(rng.choice([i["id"] for i in images])), kind)
        found.append(_near(rng, stray, kind))
    order = rng.permutation(len(found))
    return truth, [found[index] for index in order]


def _annotation(rng: np.random.Generator, number: int, image: int, kind: str) -> dict[str, Any]:
    box = _box(rng)
    crowd = bool(rng.random() < 0.2)
    entry: dict[str, Any] = {
        "id": number,
        "image_id": image,
        "category_id": 11 if kind == "keypoints" else int(rng.choice([2, 5, 11])),
        "bbox": box,
        "iscrowd": int(crowd),
        "segmentation": _crowd_mask(box) if crowd else [_corners(box)],
        "area": box[2] * box[3] * float(rng.uniform(0.5, 1)),
    }
    if kind == "keypoints":
        entry |= _keypoints(rng, box)
    return entry


def _box(rng: np.random.Generator) -> list[float]:
    width, height = rng.choice([6, 20, 40, 90, 120], 2) + rng.integers(0, 8, 2) / 4
    return [
        float(rng.uniform(0, SIDE - width)),
        float(rng.uniform(0, SIDE - height)),
        width,
        height,
    ]


def _corners(box: list[float]) -> list[float]:
    x, y, w, h = box
    return [x, y, x + w, y, x + w, y + h, x, y + h]


def _crowd_mask(box: list[float]) -> dict[str, Any]:
    x, y, w, h = (int(value) for value in box)
    mask = np.zeros((SIDE, SIDE), np.uint8, order="F")
    mask[y : y + h, x : x + w] = 1
    rle = masks.encode(mask)
    return {"size": rle["size"], "counts": rle["counts"].decode()}


def _keypoints(rng: np.random.Generator, box: list[float]) -> dict[str, Any]:
    visible = rng.choice([0, 1, 2], 17) if rng.random() < 0.8 else np.zeros(17, int)
    points = np.zeros((17, 3))
    points[:, 0] = box[0] + rng.random(17) * box[2]
    points[:, 1] = box[1] + rng.random(17) * box[3]
    points[:, 2] = visible
    points[visible == 0] = 0
    return {"keypoints": points.ravel().tolist(), "num_keypoints": int((visible > 0).sum())}


def _near(rng: np.random.Generator, entry: dict[str, Any], kind: str) -> dict[str, Any]:
    """A prediction close to an annotation, sometimes exactly it, with a score that repeats."""
    shift = rng.choice([0.0, 1.0, 4.0]) * rng.standard_normal(4) / 2
    box = (np.asarray(entry["bbox"]) + shift).tolist()
    box = [max(box[0], 0.0), max(box[1], 0.0), max(box[2], 1.0), max(box[3], 1.0)]
    found = {
        "image_id": entry["image_id"],
        "category_id": entry["category_id"],
        "score": float(rng.choice([0.1, 0.3, 0.3, 0.5, 0.9])),
    }
    if kind == "box":
        return found | {"bbox": box}
    if kind == "mask":
        rle = masks.merge(masks.frPyObjects([_corners(box)], SIDE, SIDE))
        return found | {"segmentation": {"size": rle["size"], "counts": rle["counts"].decode()}}
    points = np.asarray(entry["keypoints"]).reshape(17, 3).copy()
    points[:, :2] += rng.choice([0.0, 1.0, 5.0]) * rng.standard_normal((17, 2))
    return found | {"keypoints": points.ravel().tolist()}
