"""All ways to use a model agree on real photos: Python, clove predict, and every export."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.tasks.exported_detectors import write_tiny_run

from benchmarks.compare_exports import compare_run

WAYS = {"clove predict", "onnx", "torch-export", "detectron2 export", "torchvision"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["detect", "instances", "keypoints", "segment"])
def test_all_ways_find_the_same_in_fifty_photos(
    task: str, data_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    photos = sorted((data_folder / "coco/images/test").glob("*.jpg"))
    photos = photos[:: len(photos) // 50][:50]
    # Graphs of torch.export need sides above 64 pixels.
    run, _ = write_tiny_run(tmp_path / "run", task, test_side=None if task == "segment" else 160)
    results = {each["way"]: each for each in compare_run(run.path, photos, tmp_path)}
    expected = WAYS if task != "segment" else {"clove predict", "onnx", "torch-export"}
    assert results.keys() == expected
    assert {way for way, each in results.items() if not each["holds"]} == set(), results
    if task != "segment":
        assert all(each["pairs"] > 100 for each in results.values())
