"""Small detection datasets of random images, with every kind of label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from clove_ssl.data.scenes import KEYPOINT_NAMES
from clove_ssl.tasks.labels.rle import encode_mask
from clove_ssl.tasks.labels.samples import Annotation, DetectionDataset, Sample

SIZES = [(40, 60), (64, 48), (50, 50), (33, 71), (80, 40), (45, 90), (36, 52)]  # height, width


def random_dataset(
    folder: Path, *, images: int = 7, seed: int = 0, runs: bool = False
) -> DetectionDataset:
    """Images of several sizes with boxes, masks (polygons or runs) and keypoints."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    samples = []
    for number in range(images):
        height, width = SIZES[number % len(SIZES)]
        path = folder / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        things = tuple(_thing(rng, height, width, runs) for _ in range(rng.integers(1, 4)))
        samples.append(Sample(path, number + 1, width, height, things))
    return DetectionDataset(
        tuple(samples), ("cup", "person"), (3, 9), keypoint_names=tuple(KEYPOINT_NAMES)
    )


def _thing(rng: np.random.Generator, height: int, width: int, runs: bool) -> Annotation:
    x0, y0 = int(rng.integers(0, width - 12)), int(rng.integers(0, height - 12))
    x1, y1 = int(rng.integers(x0 + 6, width)), int(rng.integers(y0 + 6, height))
    mask = np.zeros((height, width), bool)
    mask[y0:y1, x0:x1] = True
    polygon = tuple(float(value) for value in (x0, y0, x1, y0, x1, y1, x0, y1))
    points = rng.uniform((x0, y0), (x1, y1), (len(KEYPOINT_NAMES), 2))
    visible = rng.integers(0, 3, len(KEYPOINT_NAMES))
    return Annotation(
        (float(x0), float(y0), float(x1), float(y1)),
        int(rng.integers(0, 2)),
        float(mask.sum()),
        mask=encode_mask(mask) if runs else (polygon,),
        keypoints=tuple(
            (float(x), float(y), int(v)) for (x, y), v in zip(points, visible, strict=True)
        ),
    )
