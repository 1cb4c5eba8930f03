"""``clove bench TASK`` measures captured steps where there is a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders.gpu_marks import NEEDS_GPU

from clove_ssl.bench import finetuning
from clove_ssl.bench.config import TaskBenchConfig
from clove_ssl.config.finetuning import LabelledDataConfig, protocol

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("name", ["coco-fpn", "voc-c4"])
def test_steps_are_measured_plain_and_captured(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finetuning, "DIFFERENT", 2)
    task = replace(protocol(name, Path(), "random").task, train_sides=(64,), longest=128)
    config = TaskBenchConfig(
        task=task,
        data=LabelledDataConfig(scenes_train=8, scenes_test=1, workers=0),
        architecture="resnet18",
        batch=2,
        steps=2,
        device="cuda",
    )
    measured = finetuning.run_task_bench(config)
    assert [one.name for one in measured] == [
        *("floor", "step, kernel by kernel", "step, captured"),
        *("reading, in this process", "end to end"),
    ]
    assert all(one.images_per_second > 0 for one in measured)
    assert "could not be captured" not in capsys.readouterr().out
