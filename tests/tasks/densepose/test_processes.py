"""DensePose with two processes equals DensePose with one, also where one has no labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders.paired_processes import assert_same_training, finetune_alone_and_in_pairs
from builders.tasks.tiny_densepose import scenes, tiny_densepose_run

from clove_ssl.config.finetuning import LabelledDataConfig

pytestmark = pytest.mark.forks


def rarely_labelled(folder: Path) -> LabelledDataConfig:
    """Figures of which one in twelve points survives, so that regions often have none."""
    scenes(folder)
    labels = folder / "annotations/densepose_train.json"
    content = json.loads(labels.read_text())
    seen: set[int] = set()
    for entry in content["annotations"]:
        if entry["image_id"] in seen:  # one labelled person per image
            for name in [name for name in entry if name.startswith("dp_")]:
                del entry[name]
        if "dp_x" in entry:
            seen.add(entry["image_id"])
            for name in ("dp_x", "dp_y", "dp_I", "dp_U", "dp_V"):
                entry[name] = entry[name][::12] if len(seen) % 2 else []
            if len(seen) % 2 == 0:
                entry["dp_masks"] = []
    labels.write_text(json.dumps(content))
    images = folder / "images/train"
    return LabelledDataConfig(
        train_annotations=labels,
        train_images=images,
        test_annotations=labels,
        test_images=images,
        workers=0,
    )


@pytest.mark.parametrize("rare", [False, True])
def test_two_processes_equal_one(tmp_path: Path, rare: bool) -> None:
    config = tiny_densepose_run(tmp_path / "one", batch_size=2 if rare else 4)
    if rare:
        task = replace(config.task, mirror=False, scores=("segm",))
        config = replace(config, data=rarely_labelled(tmp_path / "data"), task=task)
    one, two = finetune_alone_and_in_pairs(config, tmp_path / "two")
    assert_same_training(one, two, loss_abs=1e-7, weight_abs=5e-5)
