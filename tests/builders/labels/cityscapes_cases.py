"""Random street scenes in Cityscapes' layout, and the scores of its own tools."""

from __future__ import annotations

import contextlib
import io
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clove_ssl.tasks.cityscapes.maps import LABELS, THINGS, paint_polygons, read_polygons
from clove_ssl.tasks.cityscapes.reader import read_cityscapes
from clove_ssl.tasks.labels.rle import encode_mask, write_counts

SIZE = (48, 80)  # height, width
DRAWN = ["car", "cargroup", "person", "persongroup", "bicycle", "road", "static", "caravan", "car"]


def write_random_streets(root: Path, rng: np.random.Generator, *, count: int) -> None:
    """Images with overlapping rectangles of things, groups, stuff and void."""
    height, width = SIZE
    for number in range(count):
        name = f"city_{number:06d}_000019"
        image = root / "leftImg8bit/val/city" / f"{name}_leftImg8bit.png"
        labels = root / "gtFine/val/city" / f"{name}_gtFine_polygons.json"
        for path in (image, labels):
            path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (width, height)).save(image)
        objects = [_rectangle(rng, "road", whole=True)] if rng.random() < 0.7 else []
        objects += [_rectangle(rng, str(rng.choice(DRAWN))) for _ in range(rng.integers(0, 9))]
        content = {"imgHeight": height, "imgWidth": width, "objects": objects}
        labels.write_text(json.dumps(content))
        instances = paint_polygons(read_polygons(labels))
        path = labels.with_name(f"{name}_gtFine_instanceIds.png")
        Image.fromarray(instances.astype(np.uint16)).save(path)


def random_detections(root: Path, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Masks near the instances, and elsewhere, with scores that repeat."""
    records = []
    for sample in read_cityscapes(root, "val").samples:
        boxes = [thing.box for thing in sample.annotations for _ in range(rng.integers(0, 4))]
        kinds = [thing.category for thing in sample.annotations]
        for _ in range(rng.integers(0, 8)):
            x, y = rng.integers(0, SIZE[1] - 12), rng.integers(0, SIZE[0] - 12)
            boxes.append((x, y, x + rng.integers(0, 30), y + rng.integers(0, 30)))
        for box in boxes:
            near = np.array(box) + rng.integers(-2, 3, 4) * rng.integers(0, 2)
            x0, y0, x1, y1 = np.maximum(near, 0).astype(int)
            mask = np.zeros(SIZE, bool)
            mask[y0:y1, x0:x1] = True
            labels = list(THINGS.values())
            category = int(rng.choice(kinds)) if kinds and rng.random() < 0.8 else rng.integers(8)
            counts = write_counts(encode_mask(mask).counts)
            records.append(
                {
                    "image_id": sample.identifier,
                    "category_id": labels[category],
                    "score": float(rng.choice([0.1, 0.25, 0.25, 0.7, rng.random()])),
                    "bbox": [float(x0), float(y0), float(max(x1 - x0, 0)), float(max(y1 - y0, 0))],
                    "segmentation": {"size": list(SIZE), "counts": counts},
                }
            )
    return records


def official_table(truth: list[Path], results: Path) -> np.ndarray:
    """AP by class and threshold (K, T) of Cityscapes' own tool, for files in its format."""
    pytest.importorskip("cityscapesscripts")
    from cityscapesscripts.evaluation import evalInstanceLevelSemanticLabeling as tool

    settings = Namespace(**vars(tool.args))
    settings.quiet, settings.predictionPath = True, str(results)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(np, "in1d", np.isin, raising=False)  # gone since numpy 2.4
        tool.setInstanceLabels(settings)
        assert settings.instLabels == list(THINGS)
        files = [str(path) for path in truth]
        lists = [tool.getPrediction(path, settings) for path in files]
        instances = tool.instances2dict(files, False)
        matches = tool.matchGtWithPreds(lists, files, instances, settings)
        return tool.evaluateMatches(matches, settings)[0]


def _rectangle(rng: np.random.Generator, label: str, *, whole: bool = False) -> dict[str, Any]:
    height, width = SIZE
    assert label.removesuffix("group") in LABELS
    x0, y0 = (0, 0) if whole else (rng.integers(0, width - 4), rng.integers(0, height - 4))
    x1 = width - 1 if whole else min(width - 1, x0 + rng.integers(2, 40))
    y1 = height - 1 if whole else min(height - 1, y0 + rng.integers(2, 30))
    corners = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]
    return {"label": label, "polygon": [[int(x), int(y)] for x, y in corners]}
