"""Fine-tuning with two processes equals fine-tuning with one."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.paired_processes import assert_same_training, finetune_alone_and_in_pairs
from builders.runs.tiny_finetuning import tiny_finetuning

pytestmark = pytest.mark.forks


@pytest.mark.parametrize("task", ["voc-semantic", "coco-fpn", "coco-keypoints"])
def test_two_processes_equal_one(tmp_path: Path, task: str) -> None:
    config = tiny_finetuning(task, tmp_path / "one", batch_size=4)
    one, two = finetune_alone_and_in_pairs(config, tmp_path / "two")
    assert_same_training(one, two, loss_abs=None, weight_abs=1e-5)
    assert len(list(two.predictions.iterdir())) == len(list(one.predictions.iterdir()))
