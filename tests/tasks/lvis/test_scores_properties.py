"""Scores of LVIS against its own tools, on random and on real datasets."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("faster_coco_eval")
pytest.importorskip("pycocotools")
pytest.importorskip("lvis")

from builders.labels.lvis_cases import official_scores, random_case, write_case

from clove_ssl.tasks.lvis.reader import open_lvis, read_lvis
from clove_ssl.tasks.lvis.scores import score_lvis


def assert_equal_to_the_official_scores(path: Path, dataset: Any, records: Any, kind: Any) -> None:
    summary, precision = official_scores(path, records, kind)
    scores = score_lvis(dataset, records, kind=kind)
    expected = np.where(precision < 0, np.nan, precision)
    np.testing.assert_allclose(scores.precision[..., 0], expected, rtol=0, atol=1e-9)
    mine = {name: -1 if np.isnan(value) else value for name, value in scores.summary().items()}
    assert mine == pytest.approx(summary, abs=1e-9)


@pytest.mark.parametrize("kind", ["box", "mask"])
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), whole_numbers=st.booleans())
def test_tables_and_summary_equal_those_of_the_official_tool(
    kind: str, seed: int, whole_numbers: bool
) -> None:
    truth, records = random_case(seed, whole_numbers=whole_numbers)
    with tempfile.TemporaryDirectory() as folder:
        path, images = write_case(Path(folder), truth)
        assert_equal_to_the_official_scores(path, read_lvis(path, images), records, kind)


@pytest.mark.parametrize("kind", ["box", "mask"])
def test_real_labels_score_as_by_the_official_tool(data_folder: Path, kind: str) -> None:
    dataset = open_lvis(data_folder / "coco", "test")
    path = data_folder / "coco/annotations/lvis_v0.5_test.json"
    records = real_predictions(path)
    assert_equal_to_the_official_scores(path, dataset, records, kind)


def real_predictions(path: Path) -> list[dict[str, Any]]:
    """Objects of other classes and places, and some of the right ones."""
    import json

    from pycocotools import mask as masks

    content = json.loads(path.read_text())
    rng = np.random.default_rng(0)
    records = []
    for image in content["images"]:
        own = [a for a in content["annotations"] if a["image_id"] == image["id"]]
        classes = [a["category_id"] for a in own] + image["neg_category_ids"]
        for entry in own * 6:
            shift = rng.normal(0, 3, 2).tolist()
            outline = [
                [value + shift[number % 2] for number, value in enumerate(polygon)]
                for polygon in entry["segmentation"]
            ]
            rle = masks.merge(masks.frPyObjects(outline, image["height"], image["width"]))
            x, y, w, h = entry["bbox"]
            other = int(rng.choice(classes)) if rng.random() < 0.5 else entry["category_id"]
            records.append(
                {
                    "image_id": image["id"],
                    "category_id": other,
                    "score": round(float(rng.random()), 2),
                    "bbox": [x + shift[0], y + shift[1], w, h],
                    "segmentation": {"size": rle["size"], "counts": rle["counts"].decode()},
                }
            )
    return records
